#include "transforms/fuse.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "records/fusion_context.h"
#include "records/kernel_registry.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/cluster_writer.h"

namespace ortmodule {
namespace {

constexpr size_t kMostReaders = 64;  // a value with more is not looked through
constexpr size_t kPlaces = 1 << 12;  // from one node's place to the next: room for nodes that run early

bool fusable_type(DType dtype) {
  return dtype == DType::kFloat || dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kBool;
}

// The shape of the row values of a space.
Shape rows_of(Shape space) {
  if (!space.empty()) space.back() = 1;
  return space;
}

bool broadcasts_to(const Shape& shape, const Shape& space) {
  if (shape.size() > space.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i)
    if (!is_one(shape[i]) && shape[i] != space[space.size() - shape.size() + i]) return false;
  return true;
}

// What a program takes of a provider's limits (Prices).
struct Size {
  size_t instructions = 0, inputs = 0;
  bool fits(const Prices& prices) const {
    return instructions <= prices.cluster_instructions && inputs <= prices.cluster_inputs;
  }
};

// A cluster, of one node at first. `space` is that of its largest member; `most` is no less than its program's size.
struct Cluster {
  std::vector<Node*> nodes;
  Shape space;
  Size most;
};

class Fuser {
 public:
  Fuser(Graph& graph, const PricesOf& prices)
      : graph_(graph),
        prices_of_(prices),
        cluster_(graph.node_id_bound(), -1),
        position_(cluster_.size(), 0),
        early_(cluster_.size(), 0) {}

  FusionResult run() {
    FusionResult result;
    size_t position = 0;
    const std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) position_[node->id()] = kPlaces * ++position;
    for (Node* node : nodes) {
      if (!start(*node)) {
        if (!node->record()->has(kView)) last_outside_ = position_[node->id()];
        continue;
      }
      // Joining one cluster may make another's reader a member.
      for (bool joined = true; joined;) {
        joined = false;
        for (const NodeArg* in : node->inputs())
          if (in && in->producer() && join(cluster_[in->producer()->id()], *node)) joined = true;
      }
      if (!early_[node->id()]) join_siblings(*node);
    }
    for (int i = 0; i < static_cast<int>(clusters_.size()); ++i) repeat_members(i);
    for (Cluster& cluster : clusters_) {
      if (cluster.nodes.empty() || (cluster.nodes.size() == 1 && !pays_alone(*cluster.nodes[0]))) continue;
      const size_t members = cluster.nodes.size();
      if (!replace(cluster)) continue;
      ++result.kernels;
      result.nodes += members;
    }
    return result;
  }

 private:
  // Whether one node is a program because ATen makes several passes over memory of it.
  bool pays_alone(const Node& node) {
    return prices_at(node).whole_rows && node.record()->memory_passes().value_or(1) >= 2;
  }

  // Whether the node's provider runs programs; before placement all of the graph is the host's.
  bool has_fused_kernel(const Node& node) {
    if (!prices_at(node).runs_programs) return false;
    if (node.provider().empty()) return true;
    const std::string device_type = node.device().substr(0, node.device().find(':'));
    return KernelRegistry::instance().has("ai.ortmodule::FusedKernel", {node.provider(), device_type});
  }

  // Makes a cluster of a node that a program can express.
  bool start(Node& node) {
    const OpRecord* record = node.record();
    if (!record || !record->fusion_fn()) return false;
    if (!has_fused_kernel(node)) return false;
    const NodeArg* shaped = record->fuses_over_rows() ? node.input(0) : node.output(0);
    if (!shaped || !shaped->type().shape) return false;
    const Shape& space = *shaped->type().shape;
    if (record->fuses_over_rows() && space.size() < 2) return false;
    for (const NodeArg* out : node.outputs())
      if (out && (!out->type().shape || !fusable_type(out->type().dtype))) return false;
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const NodeArg* in = node.input(i);
      const FormalInput* formal = record->formal_input(i);
      if (!in || is_number(*in) || (formal && formal->host)) continue;
      if (!fusable_type(in->type().dtype) || !in->type().shape || !broadcasts_to(*in->type().shape, space))
        return false;
    }
    ClusterWriter writer(prices_at(node));
    if (!writer.add(node)) return false;
    cluster_[node.id()] = static_cast<int>(clusters_.size());
    clusters_.push_back({{&node}, space, size_of(writer)});
    return true;
  }

  // Puts the node's cluster and cluster `other` together where Note [Clusters] allows it.
  bool join(int other, Node& node) {
    const int mine = cluster_[node.id()];
    if (other < 0 || other == mine) return false;
    Cluster &from = clusters_[other], &to = clusters_[mine];
    if (from.nodes.size() + to.nodes.size() > prices_at(node).cluster_nodes || from.nodes[0]->phase() != node.phase())
      return false;
    if (from.nodes[0]->provider() != node.provider() || from.nodes[0]->device() != node.device()) return false;
    const Shape* space = common_space(from.space, to.space);
    if (!space || !values_fit(from, mine, *space)) return false;
    const bool late = read_before(from, other, node);
    if (late && !may_run_early(from, other, node)) return false;
    std::vector<Node*> nodes(from.nodes);
    nodes.insert(nodes.end(), to.nodes.begin(), to.nodes.end());
    std::sort(nodes.begin(), nodes.end(),
              [&](const Node* a, const Node* b) { return position_[a->id()] < position_[b->id()]; });
    // What two programs share makes that of both smaller than their sum: only beyond the limits it has to be written.
    Size size{from.most.instructions + to.most.instructions, from.most.inputs + to.most.inputs};
    if (!size.fits(prices_at(node)) && !(size = size_of(nodes)).fits(prices_at(node))) return false;
    if (late) {
      position_[node.id()] = place_of(from) + 1;
      early_[node.id()] = 1;
    }
    Cluster joined{std::move(nodes), *space, size};
    for (const Node* member : from.nodes) cluster_[member->id()] = mine;
    from = {};
    to = std::move(joined);
    return true;
  }

  size_t place_of(const Cluster& cluster) const { return position_[cluster.nodes.back()->id()]; }

  // Whether the node may run where `from` does, before somebody reads that: all else that it reads is there by then,
  // and a value as large as its own result is never stored, because it alone reads that.
  bool may_run_early(const Cluster& from, int other, const Node& node) {
    if (!prices_at(node).whole_rows || clusters_[cluster_[node.id()]].nodes.size() > 1 || node.outputs().size() != 1)
      return false;
    for (const NodeArg* in : node.inputs()) {
      const Node* producer = in ? in->producer() : nullptr;
      if (!producer || cluster_[producer->id()] == other) continue;
      const int its = cluster_[producer->id()];
      if ((its < 0 ? position_[producer->id()] : place_of(clusters_[its])) >= place_of(from)) return false;
    }
    const TypeInfo& result = node.output(0)->type();
    return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const NodeArg* in) {
      if (!in || !in->producer() || cluster_[in->producer()->id()] != other || in->is_graph_output()) return false;
      if (in->type().shape != result.shape || dtype_size(in->type().dtype) < dtype_size(result.dtype)) return false;
      return std::all_of(in->uses().begin(), in->uses().end(),
                         [&](const Use& use) { return use.node == &node || cluster_[use.node->id()] == other; });
    });
  }

  // The member at whose place in the graph the cluster runs.
  Node* anchor_of(const Cluster& cluster) const {
    return *std::find_if(cluster.nodes.rbegin(), cluster.nodes.rend(),
                         [&](const Node* node) { return !early_[node->id()]; });
  }

  // Members of a cluster that stays as it is and that others may read early go where they were to run.
  void settle(const Cluster& cluster) {
    const auto is_early = [&](const Node* node) { return early_[node->id()] != 0; };
    if (std::none_of(cluster.nodes.begin(), cluster.nodes.end(), is_early)) return;
    const std::vector<Node*> order = graph_.nodes();
    const auto anchor = std::find(order.begin(), order.end(), anchor_of(cluster));
    const auto next = std::find_if_not(anchor + 1, order.end(), is_early);
    for (Node* node : cluster.nodes)
      if (is_early(node)) graph_.move_before(node, next == order.end() ? nullptr : *next);
  }

  // Joins the clusters that read a large value which the node reads too, where no other kernel runs between them: what
  // they keep or hold back until the node's place is then the same.
  void join_siblings(Node& node) {
    for (const NodeArg* in : node.inputs()) {
      if (!in || is_number(*in) || !in->type().shape || in->uses().size() > kMostReaders) continue;
      if (*in->type().shape != clusters_[cluster_[node.id()]].space) continue;
      for (const Use& use : in->uses()) {
        const int other = cluster_[use.node->id()];
        if (other >= 0 && position_[clusters_[other].nodes.back()->id()] > last_outside_) join(other, node);
      }
    }
  }

  // Values of other clusters that cluster `mine` can compute from what it reads anyway are computed there: one large
  // value less to read, and to store where nobody else reads it.
  void repeat_members(int mine) {
    if (clusters_[mine].nodes.empty() || !prices_at(*clusters_[mine].nodes[0]).whole_rows) return;
    std::unordered_set<const NodeArg*> read;
    for (const Node* node : clusters_[mine].nodes)
      for (const NodeArg* in : node->inputs())
        if (in && (!in->producer() || cluster_[in->producer()->id()] != mine)) read.insert(in);
    const std::vector<Node*> members = clusters_[mine].nodes;
    for (Node* reader : members)
      for (size_t i = 0; i < reader->inputs().size(); ++i) {
        NodeArg* value = reader->input(i);
        if (!value || !read.count(value) || !may_repeat(*value, mine, read)) continue;
        read.erase(value);  // which may be gone then
        repeat(value, mine, *reader);
      }
  }

  bool may_repeat(const NodeArg& value, int mine, const std::unordered_set<const NodeArg*>& read) {
    const Node* node = value.producer();
    if (!node || cluster_[node->id()] < 0 || node->outputs().size() != 1 || node->record()->has(kRandom)) return false;
    const Cluster &cluster = clusters_[mine], &its = clusters_[cluster_[node->id()]];
    if (std::any_of(its.nodes.begin(), its.nodes.end(), [&](const Node* other) { return early_[other->id()] != 0; }))
      return false;  // they run where others of it do, which may go
    const Node& first = *cluster.nodes[0];
    if (node->record()->fuses_over_rows() || *value.type().shape != cluster.space || node->phase() != first.phase() ||
        node->provider() != first.provider() || node->device() != first.device())
      return false;
    const auto at_hand = [&](const NodeArg* in) { return !in || is_number(*in) || read.count(in) != 0; };
    if (!std::all_of(node->inputs().begin(), node->inputs().end(), at_hand)) return false;
    std::vector<Node*> nodes{const_cast<Node*>(node)};
    nodes.insert(nodes.end(), cluster.nodes.begin(), cluster.nodes.end());
    return nodes.size() <= prices_at(first).cluster_nodes && size_of(nodes).fits(prices_at(first));
  }

  // Gives the members of a cluster a copy of the node that makes `value`; the node goes where nobody else reads it.
  void repeat(NodeArg* value, int mine, Node& reader) {
    Node* node = value->producer();
    Node* copy = graph_.add_node(node->domain(), node->op(), node->inputs(), {graph_.fresh_name(value->name())},
                                 node->attributes(), &reader, graph_.fresh_name(node->name() + "_there"));
    copy->set_phase(node->phase());
    copy->place(node->provider(), node->device());
    copy->metadata() = node->metadata();
    infer_node(*copy);
    copy->output(0)->set_type(value->type());
    copy->output(0)->set_location(value->location());
    copy->output(0)->set_known_dims(value->known_dims());
    for (Node* member : clusters_[mine].nodes)
      for (size_t i = 0; i < member->inputs().size(); ++i)
        if (member->input(i) == value) member->set_input(i, copy->output(0));
    cluster_.resize(graph_.node_id_bound(), -1);
    position_.resize(cluster_.size(), 0);
    early_.resize(cluster_.size(), 0);
    cluster_[copy->id()] = mine;
    position_[copy->id()] = position_[reader.id()] - 1;
    auto& nodes = clusters_[mine].nodes;
    nodes.insert(std::find(nodes.begin(), nodes.end(), &reader), copy);
    if (!value->uses().empty() || value->is_graph_output()) return;
    std::erase(clusters_[cluster_[node->id()]].nodes, node);
    graph_.remove(node);
  }

  static const Shape* common_space(const Shape& a, const Shape& b) {
    if (a == b) return &a;
    if (!b.empty() && !is_one(b.back()) && a == rows_of(b)) return &b;
    if (!a.empty() && !is_one(a.back()) && b == rows_of(a)) return &a;
    return nullptr;
  }

  // Whether what cluster `reader` reads of `from` is a value of every element or row: a sum over columns is known at
  // the end only.
  bool values_fit(const Cluster& from, int reader, const Shape& space) const {
    const Shape rows = rows_of(space);
    for (const Node* member : from.nodes)
      for (const NodeArg* out : member->outputs()) {
        if (!out || *out->type().shape == space || *out->type().shape == rows) continue;
        for (const Use& use : out->uses())
          if (cluster_[use.node->id()] == reader) return false;
      }
    return true;
  }

  // Whether a node outside both clusters reads one of `from`'s values before `node`, or too many read it to tell.
  bool read_before(const Cluster& from, int other, const Node& node) const {
    const int mine = cluster_[node.id()];
    for (const Node* member : from.nodes)
      for (const NodeArg* out : member->outputs()) {
        if (!out) continue;
        if (out->uses().size() > kMostReaders) return true;
        for (const Use& use : out->uses()) {
          const int reader = cluster_[use.node->id()];
          if (reader != mine && reader != other && position_[use.node->id()] < position_[node.id()]) return true;
        }
      }
    return false;
  }

  static Size size_of(const ClusterWriter& writer) { return {writer.instructions(), writer.inputs().size()}; }

  Size size_of(const std::vector<Node*>& nodes) {
    ClusterWriter writer(prices_at(*nodes[0]));
    for (Node* node : nodes) writer.add(*node);
    return size_of(writer);
  }

  bool is_needed(const NodeArg* value, int cluster) const {
    if (value->is_graph_output()) return true;
    return std::any_of(value->uses().begin(), value->uses().end(),
                       [&](const Use& use) { return cluster_[use.node->id()] != cluster; });
  }

  // Whether the program means what the nodes meant: its kinds of values are their shapes, and its inputs span the
  // space.
  bool is_sound(const ClusterWriter& writer, const FusedProgram& program, const Cluster& cluster) const {
    const std::vector<char> rows = program.row_values();
    for (const ClusterWriter::Output& out : writer.outputs()) {
      if (out.form != OutputForm::kFull && out.form != OutputForm::kRow) continue;
      const bool row = rows[writer.final_number(out.number)] != 0;
      if (*out.value->type().shape != (row ? rows_of(cluster.space) : cluster.space)) return false;
      if (row && is_one(cluster.space.back())) return false;
    }
    for (const Instruction& i : program.code)
      if (i.op == Opcode::kPhiloxDropout && rows[i.arguments[0]]) return false;
    const std::unordered_set<const Node*> members(cluster.nodes.begin(), cluster.nodes.end());
    std::vector<char> spanned(cluster.space.size(), 0);
    size_t rank = 0;
    for (size_t k = 0; k < writer.inputs().size(); ++k) {
      const NodeArg* in = writer.inputs()[k];
      if (in->producer() && members.count(in->producer())) return false;
      if (program.is_state(static_cast<int>(k))) continue;
      const Shape& shape = *in->type().shape;
      if (!broadcasts_to(shape, cluster.space)) return false;
      rank = std::max(rank, shape.size());
      for (size_t d = 0; d < shape.size(); ++d)
        if (!is_one(shape[d])) spanned[cluster.space.size() - shape.size() + d] = 1;
    }
    if (rank != cluster.space.size()) return false;
    for (size_t d = 0; d < spanned.size(); ++d)
      if (!spanned[d] && !is_one(cluster.space[d])) return false;
    return true;
  }

  bool replace(const Cluster& cluster) {
    const int id = cluster_[cluster.nodes[0]->id()];
    ClusterWriter writer(prices_at(*cluster.nodes[0]));
    for (Node* node : cluster.nodes) writer.add(*node);
    const auto needed = [&](const NodeArg* value) { return is_needed(value, id); };
    FusedProgram program = writer.finish(cluster.space, needed);
    if (program.outputs.empty() || !is_sound(writer, program, cluster)) {
      settle(cluster);
      return false;
    }
    // A row that is kept in the cluster's form is written as the row it is.
    const std::vector<char> rows = program.row_values();
    for (FusedProgram::Output& out : program.outputs)
      if (out.form == OutputForm::kFull && rows[out.value]) out.form = OutputForm::kRow;

    const std::vector<NodeArg*>& inputs = writer.inputs();
    std::vector<NodeArg*> values;
    for (const ClusterWriter::Output& out : writer.outputs())
      if (needed(out.value)) values.push_back(out.value);
    // The new node takes the names of the values that it replaces, which are free once the old nodes are gone: until
    // then another stands in under fresh names.
    Node* last = anchor_of(cluster);
    const Phase phase = last->phase();
    const std::string provider = last->provider(), device = last->device();
    auto metadata = last->metadata();
    const std::string name = graph_.fresh_name(last->name() + "_fused");
    const Attributes attributes = write_program(program);
    Node* stand_in = graph_.add_node("ai.ortmodule", "FusedKernel", inputs, std::vector<std::string>(values.size()),
                                     attributes, last);
    std::vector<std::string> names;
    std::vector<TypeInfo> types;
    std::vector<std::optional<std::vector<Dim>>> known;
    for (size_t i = 0; i < values.size(); ++i) {
      names.push_back(values[i]->name());
      types.push_back(values[i]->type());
      known.push_back(values[i]->known_dims());
      graph_.replace_all_uses(values[i], stand_in->output(i));
    }
    for (auto node = cluster.nodes.rbegin(); node != cluster.nodes.rend(); ++node) graph_.remove(*node);
    Node* fused = graph_.add_node("ai.ortmodule", "FusedKernel", inputs, names, attributes, stand_in, name);
    fused->set_phase(phase);
    fused->place(provider, device);
    fused->metadata() = std::move(metadata);
    for (size_t i = 0; i < names.size(); ++i) {
      fused->output(i)->set_type(types[i]);
      fused->output(i)->set_location(device);
      fused->output(i)->set_known_dims(known[i]);
      graph_.replace_all_uses(stand_in->output(i), fused->output(i));
    }
    graph_.remove(stand_in);
    infer_node(*fused);
    cluster_.resize(graph_.node_id_bound(), -1);
    return true;
  }

  const Prices& prices_at(const Node& node) {
    const auto known = prices_.find(node.provider());
    return known != prices_.end() ? known->second
                                  : prices_.emplace(node.provider(), prices_of_(node.provider())).first->second;
  }

  Graph& graph_;
  const PricesOf& prices_of_;
  std::unordered_map<std::string, Prices> prices_;  // by provider
  std::vector<int> cluster_;                        // by node id: its cluster, -1
  std::vector<size_t> position_;                    // by node id: its place in the order
  std::vector<char> early_;                         // by node id: it runs at its cluster's place, not at its own
  std::vector<Cluster> clusters_;
  size_t last_outside_ = 0;  // the place of the last node that is in no cluster and no view
};

}  // namespace

FusionResult fuse(Graph& graph, const PricesOf& prices) { return Fuser(graph, prices).run(); }

}  // namespace ortmodule
