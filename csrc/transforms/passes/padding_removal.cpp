// Positions that no loss sees are not computed: padding, and what follows the last label under a causal mask.
//
// Which positions these are is found at run time, not by the pattern of how a model builds its mask: starting at the
// rows that label_compaction.cpp made the loss read, a row is needed when a needed row attends to it, and attention's
// own mask says which do (AttendedRows). All row-wise nodes between the embeddings and the loss then run on the needed
// rows; around attention, which wants [batch, heads, length, size], rows are put back to their places. A node takes
// part when everything that reads it does, so that no output of the graph ever shows a row that was left out: with
// hidden states or scores among the outputs, only what lies behind them is compacted.
//
// Exact: a key that is hidden has weight zero whatever it holds. Dense batches cost a look at the masks. Not across
// eager's Dropout (label_compaction.cpp says why), and not for small models.
#include <algorithm>
#include <set>

#include "records/attention_form.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/row_region.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastProducts = int64_t{1} << 26;

bool is_attention(const Node& node) {
  return node.qualified_op() == "ai.ortmodule::AttentionDropout" ||
         node.qualified_op() == "ai.ortmodule::PhiloxAttention" ||
         (node.qualified_op() == "Attention" && plain_attention(node));
}

bool is_row_list(const NodeArg* rows) {
  return rows->producer() && (rows->producer()->op() == "LabelRows" || rows->producer()->op() == "SlicedRows");
}

// Where a value has its rows: behind `lead` leading dims (1: batch * length, 2: batch, length), or on two axes.
struct Place {
  size_t lead;  // 0: on `axes`
  RowAxes axes{0, 1};
  bool operator==(const Place&) const = default;
};

Place at_axes(RowAxes axes) { return axes == RowAxes{0, 1} ? Place{2} : Place{0, axes}; }

class Removal {
 public:
  explicit Removal(Graph& graph) : graph_(graph), rows_(graph) {}

  bool run() {
    find_members();
    if (roots_.empty() || attentions_.empty() || region_.empty() || !worthwhile() || !sound()) return false;
    Node* first = graph_.nodes().front();
    std::vector<NodeArg*> sources{sizes_value(graph_, {batch_, length_}, first)};
    std::set<NodeArg*> seeds;
    for (const Node* root : roots_)
      if (seeds.insert(root->input(1)).second) sources.push_back(root->input(1));
    std::vector<int64_t> causal, masked;
    for (const auto& [mask, is_causal] : attentions_) {
      causal.push_back(is_causal);
      masked.push_back(mask != nullptr);
      if (mask) sources.push_back(mask);
    }
    list_ = rows_.emit("ai.ortmodule::AttendedRows", sources,
                       {{"seeds", static_cast<int64_t>(seeds.size())}, {"causal", causal}, {"masked", masked}}, first);
    for (auto it = region_.rbegin(); it != region_.rend(); ++it)
      rows_.repeat(*it->node, it->place.lead, it->inputs, list_);
    for (const auto& [node, wanted] : between_) spread_inputs(*node, wanted);
    for (Node* root : roots_) rebase(*root);
    return true;
  }

 private:
  struct Demand {
    Place place;
    size_t uses = 0;
    bool torn = false;
  };
  struct Member {
    Node* node;
    Place place;
    std::vector<RowInput> inputs;
  };

  void want(NodeArg* value, Place place) {
    const auto [it, fresh] = demands_.try_emplace(value, Demand{place});
    ++it->second.uses;
    if (!fresh && it->second.place != place) it->second.torn = true;
  }

  // The place of a node's outputs, when members are all that reads them.
  std::optional<Place> place_of(const Node& node) const {
    std::optional<Place> place;
    for (const NodeArg* out : node.outputs()) {
      if (!out || (out->uses().empty() && !out->is_graph_output())) continue;
      const auto it = demands_.find(out);
      if (it == demands_.end() || it->second.torn || it->second.uses != out->uses().size() || out->is_graph_output())
        return std::nullopt;
      if (place && *place != it->second.place) return std::nullopt;
      place = it->second.place;
    }
    return place;
  }

  void find_members() {
    const std::vector<Node*> nodes = graph_.nodes();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      Node& node = **it;
      const auto lead = static_cast<size_t>(node.get_int("lead", 1));
      if (node.op() == "GatherRows" && is_row_list(node.input(1)) && lead <= 2 &&
          is_floating(node.output(0)->type().dtype)) {
        roots_.push_back(&node);
        want(node.input(0), Place{lead});
      } else if (const auto place = place_of(node)) {
        join(node, *place);
      }
    }
  }

  void join(Node& node, Place place) {
    if (is_attention(node)) return join_attention(node, place);
    if (place.lead > 0) {
      if (auto inputs = row_inputs(node, place.lead); inputs && usable(node, *inputs)) {
        for (size_t i = 0; i < inputs->size(); ++i)
          if ((*inputs)[i].role == RowInput::kRows) want(node.input(i), Place{(*inputs)[i].lead});
        members_.insert(&node);
        region_.push_back({&node, place, std::move(*inputs)});
        return;
      }
      if (place.lead == 1) return;
    }
    const auto axes = input_axes(node, place.lead == 2 ? RowAxes{0, 1} : place.axes);
    if (axes.empty()) return;
    std::vector<bool> wanted(node.inputs().size(), false);
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!axes[i]) continue;
      wanted[i] = true;
      want(node.input(i), at_axes(*axes[i]));
    }
    members_.insert(&node);
    between_.emplace_back(&node, std::move(wanted));
  }

  bool usable(const Node& node, const std::vector<RowInput>& inputs) const {
    for (const RowInput& in : inputs) {
      if (in.role == RowInput::kRows && in.lead > 2) return false;
      if (in.role == RowInput::kBroadcast && !bound_dims(graph_, *node.output(0)->type().shape)) return false;
    }
    return true;
  }

  // Self-attention over [batch, heads, length, size] whose keys are the same positions as its queries.
  void join_attention(Node& node, Place place) {
    if (place != Place{0, {0, 2}}) return;
    const NodeArg* mask = node.input(3);
    if (mask && (!mask->type().shape || mask->type().shape->size() > 4)) return;
    for (size_t i = 0; i < 3; ++i) {
      const auto& shape = node.input(i)->type().shape;
      if (!shape || shape->size() != 4) return;
      if (attentions_.empty() && i == 0) {
        batch_ = (*shape)[0];
        length_ = (*shape)[2];
      }
      if ((*shape)[0] != batch_ || (*shape)[2] != length_) return;
    }
    const std::pair<NodeArg*, bool> hides{node.input(3), node.get_int("is_causal", 0) != 0};
    if (std::find(attentions_.begin(), attentions_.end(), hides) == attentions_.end()) attentions_.push_back(hides);
    std::vector<bool> wanted(node.inputs().size(), false);
    for (size_t i = 0; i < 3; ++i) {
      wanted[i] = true;
      want(node.input(i), Place{0, {0, 2}});
    }
    members_.insert(&node);
    between_.emplace_back(&node, std::move(wanted));
  }

  // Some row can be left out only where some attention hides one.
  bool worthwhile() const {
    bool hides = false;
    for (const auto& [mask, is_causal] : attentions_) hides = hides || mask || is_causal;
    int64_t per_row = 0;
    for (const Member& m : region_) per_row += products_per_row(*m.node);
    const Dim rows = batch_ * length_;
    return hides && per_row > 0 && (!rows.is_known() || per_row >= kLeastProducts / std::max<int64_t>(1, rows.value()));
  }

  // Rows and masks must not depend on what they decide about, and the sizes must be the inputs'.
  bool sound() const {
    if (!bound_dims(graph_, {batch_, length_})) return false;
    for (const Node* root : roots_) {
      const Shape& x = *root->input(0)->type().shape;
      const bool whole = root->get_int("lead", 1) == 2 ? x[0] == batch_ && x[1] == length_ : x[0] == batch_ * length_;
      if (!whole) return false;
    }
    std::vector<const Node*> stack;
    std::set<const Node*> seen;
    const auto push = [&](const NodeArg* value) {
      if (value && value->producer() && seen.insert(value->producer()).second) stack.push_back(value->producer());
    };
    for (const Node* root : roots_) push(root->input(1));
    for (const auto& [mask, is_causal] : attentions_) push(mask);
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      if (members_.count(node)) return false;
      for (const NodeArg* in : node->inputs()) push(in);
    }
    return true;
  }

  void spread_inputs(Node& node, const std::vector<bool>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      NodeArg* value = node.input(i);
      if (!wanted[i] || !rows_.has(value, list_)) continue;
      const size_t lead = demands_.at(value).place.lead;
      NodeArg*& whole = spread_[value];
      if (!whole)
        whole = rows_.emit("ai.ortmodule::SpreadRows",
                           {rows_.of(value, lead, list_, &node), list_,
                            sizes_value(graph_, lead == 2 ? Shape{batch_, length_} : Shape{batch_ * length_}, &node)},
                           {{"lead", static_cast<int64_t>(lead)}}, &node);
      node.set_input(i, whole);
    }
  }

  // A root reads its rows from the compact value.
  void rebase(Node& root) {
    if (!rows_.has(root.input(0), list_)) return;
    NodeArg*& positions = positions_[root.input(1)];
    if (!positions) positions = rows_.emit("ai.ortmodule::RelativeRows", {root.input(1), list_}, {}, &root);
    root.set_input(0, rows_.of(root.input(0), 1, list_, &root));
    root.set_input(1, positions);
    root.set_attribute("lead", int64_t{1});
  }

  Graph& graph_;
  CompactRows rows_;
  NodeArg* list_ = nullptr;
  Dim batch_, length_;
  std::unordered_map<const NodeArg*, Demand> demands_;
  std::unordered_map<const NodeArg*, NodeArg*> spread_, positions_;
  std::set<const Node*> members_;
  std::vector<Node*> roots_;
  std::vector<Member> region_;                                // from the roots backwards
  std::vector<std::pair<Node*, std::vector<bool>>> between_;  // around attention, and which inputs have rows
  std::vector<std::pair<NodeArg*, bool>> attentions_;         // mask or null, causal; each kind once
};

class PaddingRemoval : public GraphTransformer {
 public:
  const char* name() const override { return "padding_removal"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    if (!context.training || context.grad_inputs.empty()) return 0;
    bool labelled = false;
    for (const Node* node : graph.nodes()) {
      if (node->op() == "AttendedRows") return 0;  // done in an earlier round
      labelled = labelled || node->op() == "LabelRows";
    }
    if (!labelled) return 0;
    resolve(graph, {.infer = false});
    if (!Removal(graph).run()) return 0;
    resolve(graph, {.infer = false});
    return 1;
  }
};

}  // namespace

ORTMODULE_PASS(PaddingRemoval, PassLevel::kExtended, kForwardOnly, pass_place::kRows + 1);

}  // namespace ortmodule
