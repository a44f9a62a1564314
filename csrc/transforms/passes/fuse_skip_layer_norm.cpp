// The normalization of a residual sum becomes one node, in graphs of inference:
//
//     LayerNormalization(x + skip [+ bias]), RMSNormalization(x + skip [+ bias])
//
// over the last axis, x and skip of one shape, scale and biases of the last axis's size and no node's results.
// com.microsoft's SkipLayerNormalization and SkipSimplifiedLayerNormalization are these operators. Who else reads the
// sum (the next block's residual) reads it from the node's fourth output. The sum of a product with its bias is that
// product's (fuse_matmul_add runs before).
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr size_t kSum = 3;  // the output of the node that is the sum

struct Sum {
  Node* add = nullptr;
  NodeArg *x = nullptr, *skip = nullptr, *bias = nullptr;
};

Sum find(const Node& norm) {
  const NodeArg* sum = norm.input(0);
  Node* add = sum ? sum->producer() : nullptr;
  if (!add || add->qualified_op() != "Add" || add->phase() != norm.phase()) return {};
  for (size_t i = 0; i < 2; ++i)
    if (!same_shape(add->input(i), sum)) return {};
  Sum found{add, add->input(0), add->input(1)};
  for (size_t i = 0; i < 2; ++i) {
    const Node* inner = made_by(add->input(i), "Add");
    for (size_t k = 0; inner && k < 2; ++k)
      if (is_row_of(inner->input(k), sum) && same_shape(inner->input(1 - k), sum))
        return {add, inner->input(1 - k), add->input(1 - i), inner->input(k)};
  }
  return found;
}

class SkipLayerNormRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_skip_layer_norm"; }
  std::vector<std::string> ops() const override { return {"LayerNormalization", "RMSNormalization"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && is_floating(node.output(0)->type().dtype) && normalizes_rows(node) && find(node).add;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Sum sum = find(node);
    const bool centers = node.op() == "LayerNormalization";
    std::vector<NodeArg*> inputs{sum.x, sum.skip, node.input(1)};
    if (centers) inputs.push_back(node.input(2));
    inputs.push_back(sum.bias);
    while (!inputs.back()) inputs.pop_back();
    // Before the sum's other readers, which may stand before the normalization.
    Node* skip =
        graph.add_node("com.microsoft", centers ? "SkipLayerNormalization" : "SkipSimplifiedLayerNormalization", inputs,
                       {""}, {{"epsilon", node.get_float("epsilon", 1e-5)}}, sum.add, node.name());
    skip->metadata() = node.metadata();
    NodeArg* const value = sum.add->output(0);
    const bool read = !has_one_use(value);
    graph.replace_all_uses(node.output(0), skip->output(0));
    graph.remove(&node);
    if (read) graph.move_output(value, skip, kSum);
    graph.remove(sum.add);
    infer_node(*skip);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_skip_layer_norm", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 8,
                SkipLayerNormRule);

}  // namespace ortmodule
