// Rows whose label is ignored do not reach the vocabulary projection.
//
// Where losses of softmax and cross entropy are the only readers of their scores, the row-wise nodes before it (linear
// layers, norms, activations, residual sums: everything back to the last node that mixes rows, which is attention) run
// on the rows that have a label, chosen at run time. Masked language models label 15 % of them. The loss and all
// gradients are those of the whole: an ignored row adds nothing to either.
//
// Not across a Dropout whose draws are eager's: on fewer rows it would draw other numbers. The counter-based one is
// row-wise like any other. Small work is left alone: finding the rows costs some microseconds, and where the labels are
// on a device, a wait for all that it has to do before.
#include <algorithm>

#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/row_region.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastProducts = int64_t{1} << 25;
constexpr double kFlopsOfProduct = 6;  // forward and both gradients

bool is_used(const NodeArg* value) { return value && (!value->uses().empty() || value->is_graph_output()); }

// A loss over scores[N, C] and labels[N] to which ignored rows add nothing.
bool is_loss(const Node& node) {
  if (node.qualified_op() != "SoftmaxCrossEntropyLoss" && node.qualified_op() != "NegativeLogLikelihoodLoss")
    return false;
  const auto &scores = node.input(0)->type().shape, &labels = node.input(1)->type().shape;
  const Node* made = node.input(1)->producer();
  return node.get_string("reduction", "mean") != "none" && node.find_attribute("ignore_index") && scores && labels &&
         scores->size() == 2 && labels->size() == 1 && !is_used(node.output(1)) &&
         !(made && made->op() == "GatherRows");  // done already
}

class Compaction {
 public:
  // Losses with the same labels.
  Compaction(Graph& graph, std::vector<Node*> losses) : graph_(graph), losses_(std::move(losses)), rows_(graph) {}

  bool run(const TransformContext& context) {
    find_region();
    if (region_.empty() || !worthwhile(context)) return false;
    Node* first = losses_.front();
    NodeArg* labels = first->input(1);
    lists_[0].rows = rows_.emit("ai.ortmodule::LabelRows", {labels},
                                {{"ignore_index", first->get_int("ignore_index", -100)}}, first);
    for (size_t i = 1; i < lists_.size(); ++i)
      lists_[i].rows = rows_.emit("ai.ortmodule::SlicedRows",
                                  {lists_[lists_[i].from].rows, sizes_value(graph_, lists_[i].sizes, first)},
                                  {{"start", lists_[i].start}}, first);
    for (auto it = region_.rbegin(); it != region_.rend(); ++it) build(*it);
    for (Node* loss : losses_) {
      loss->set_input(0, rows_.of(loss->input(0), 1, lists_[0].rows, loss));
      loss->set_input(1, rows_.of(labels, 1, lists_[0].rows, loss));
    }
    // Nothing reads the whole rows any more: passes behind this one should see that.
    for (const Member& m : region_) graph_.remove(m.node);
    return true;
  }

 private:
  // A list of rows: the labelled ones, or those before a Slice.
  struct List {
    size_t from = 0;
    Shape sizes{};
    int64_t start = 0;
    NodeArg* rows = nullptr;
  };
  struct Demand {
    size_t lead, list, uses = 0;
    bool torn = false;  // wanted in two forms
  };
  struct Member {
    Node* node;
    Demand demand;
    std::vector<RowInput> inputs;  // empty: a Slice of rows
    size_t list_before = 0;
  };

  void want(NodeArg* value, size_t lead, size_t list) {
    const auto [it, fresh] = demands_.try_emplace(value, Demand{lead, list});
    ++it->second.uses;
    if (!fresh && (it->second.lead != lead || it->second.list != list)) it->second.torn = true;
  }

  // What the outputs of a node are wanted as, when the region is all that reads them.
  const Demand* demand_of(const Node& node) const {
    const Demand* found = nullptr;
    for (const NodeArg* out : node.outputs()) {
      if (!is_used(out)) continue;
      const auto it = demands_.find(out);
      if (it == demands_.end() || it->second.torn || it->second.uses != out->uses().size() || out->is_graph_output())
        return nullptr;
      if (found && (found->lead != it->second.lead || found->list != it->second.list)) return nullptr;
      found = &it->second;
    }
    return found;
  }

  void find_region() {
    lists_.assign(1, List{});
    for (const Node* loss : losses_) want(loss->input(0), 1, 0);
    const std::vector<Node*> nodes = graph_.nodes();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      const Demand* demand = demand_of(**it);
      if (!demand) continue;
      Member member{*it, *demand, {}};
      if (const auto start = sliced_rows_start(**it, demand->lead)) {
        const size_t axis = demand->lead - 1;
        const Dim &length = (*(*it)->input(0)->type().shape)[axis], &kept = (*(*it)->output(0)->type().shape)[axis];
        member.list_before = lists_.size();
        lists_.push_back({demand->list, {length, kept}, *start});
        want((*it)->input(0), demand->lead, member.list_before);
      } else {
        const auto inputs = row_inputs(**it, demand->lead);
        if (!inputs) continue;
        if (!broadcasts_are_bound(**it, *inputs, demand->lead)) continue;
        member.inputs = *inputs;
        for (size_t i = 0; i < inputs->size(); ++i)
          if ((*inputs)[i].role == RowInput::kRows) want((*it)->input(i), (*inputs)[i].lead, member.demand.list);
      }
      region_.push_back(std::move(member));
    }
  }

  bool broadcasts_are_bound(const Node& node, const std::vector<RowInput>& inputs, size_t lead) const {
    const Shape& out = *node.output(0)->type().shape;
    for (const RowInput& in : inputs)
      if (in.role == RowInput::kBroadcast && !bound_dims(graph_, out)) return false;
    return lead > 0;
  }

  bool worthwhile(const TransformContext& context) const {
    int64_t per_row = 0;
    for (const Member& m : region_) per_row += products_per_row(*m.node);
    const Dim& dim = (*losses_.front()->input(0)->type().shape)[0];
    const Prices& prices = context.prices;
    const double wait = prices.wait_bytes * prices.flops_per_byte / kFlopsOfProduct;
    const int64_t least = std::max(kLeastProducts, static_cast<int64_t>(wait));
    const int64_t rows = dim.is_known() ? dim.value() : wait > 0 ? value_of(dim, context.sizes) : -1;
    return per_row > 0 && (rows < 0 || per_row >= least / std::max<int64_t>(1, rows));
  }

  // -1 where a size is not known.
  static int64_t value_of(const Dim& dim, const SymbolTable& sizes) {
    std::vector<std::string> names;
    dim.collect_symbols(names);
    for (const std::string& name : names)
      if (!sizes.count(name)) return -1;
    return dim.evaluate(sizes);
  }

  void build(const Member& m) {
    NodeArg* rows = lists_[m.demand.list].rows;
    if (m.inputs.empty())
      rows_.set(m.node->output(0), rows, rows_.of(m.node->input(0), m.demand.lead, lists_[m.list_before].rows, m.node));
    else
      rows_.repeat(*m.node, m.demand.lead, m.inputs, rows);
  }

  Graph& graph_;
  std::vector<Node*> losses_;
  CompactRows rows_;
  std::vector<List> lists_;
  std::unordered_map<const NodeArg*, Demand> demands_;
  std::vector<Member> region_;  // from the loss backwards
};

class LabelCompaction : public GraphTransformer {
 public:
  const char* name() const override { return "label_compaction"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    if (!context.training || context.grad_inputs.empty()) return 0;
    std::vector<std::vector<Node*>> groups;
    for (Node* node : graph.nodes()) {
      if (!is_loss(*node)) continue;
      const auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<Node*>& group) {
        return group[0]->input(1) == node->input(1) &&
               group[0]->get_int("ignore_index", 0) == node->get_int("ignore_index", 0);
      });
      if (same == groups.end())
        groups.push_back({node});
      else
        same->push_back(node);
    }
    size_t done = 0;
    for (std::vector<Node*>& group : groups) done += Compaction(graph, std::move(group)).run(context);
    if (done) resolve(graph, {.infer = false});
    return done;
  }
};

}  // namespace

ORTMODULE_PASS(LabelCompaction, PassLevel::kExtended, kForwardOnly, pass_place::kRows);

}  // namespace ortmodule
