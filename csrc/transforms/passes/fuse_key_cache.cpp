// Keys and values of earlier tokens become inputs of the attention that reads them, in graphs of inference:
//
//     Attention(q, Concat(past_key, key), Concat(past_value, value), mask)
//
// along the axis of keys becomes Attention(q, key, value, mask, past_key, past_value), whose outputs present_key and
// present_value are what the Concats made. These are read by nothing else, but may be outputs of the graph. Not with
// is_causal, which counts positions from the past on where there is one.
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr size_t kKey = 1, kValue = 2, kMask = 3, kPastKey = 4, kLengths = 6;
constexpr size_t kPresentKey = 1, kScores = 3;

// The Concat of a past and what is new; null.
Node* with_past(const NodeArg* value) {
  Node* concat = value->producer();
  if (!concat || concat->qualified_op() != "Concat" || concat->inputs().size() != 2 || value->uses().size() != 1)
    return nullptr;
  const auto& shape = value->type().shape;
  const int64_t axis = concat->get_int("axis", 0);
  return shape && shape->size() == 4 && (axis == 2 || axis == -2) ? concat : nullptr;
}

class KeyCacheRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_key_cache"; }
  std::vector<std::string> ops() const override { return {"Attention"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    if (context.training || node.get_int("is_causal", 0) != 0) return false;
    for (size_t i = kPastKey; i <= kLengths; ++i)
      if (node.input(i)) return false;
    for (size_t i = kPresentKey; i <= kScores; ++i)
      if (node.output(i)) return false;
    const Node *k = with_past(node.input(kKey)), *v = with_past(node.input(kValue));
    return k && v && k != v && k->phase() == node.phase() && v->phase() == node.phase();
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    Node *k = with_past(node.input(kKey)), *v = with_past(node.input(kValue));
    std::vector<NodeArg*> inputs{node.input(0), k->input(1), v->input(1), node.input(kMask), k->input(0), v->input(0)};
    Node* attention = graph.add_node("", "Attention", inputs, {""}, node.attributes(), &node, node.name());
    attention->metadata() = node.metadata();
    graph.replace_all_uses(node.output(0), attention->output(0));
    graph.remove(&node);
    for (size_t i = 0; i < 2; ++i) {
      Node* concat = i == 0 ? k : v;
      if (concat->output(0)->is_graph_output()) graph.move_output(concat->output(0), attention, kPresentKey + i);
      graph.remove(concat);
    }
    infer_node(*attention);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_key_cache", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 4, KeyCacheRule);

}  // namespace ortmodule
