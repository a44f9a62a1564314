// Gelu(x + bias) becomes com.microsoft's BiasGelu, in graphs of inference: the bias an initializer or an input of the
// graph of the last axis's size, the sum read by nothing else. Of Gelu with the error function alone; with tanh it is
// part of a fused program, which the sum is too. The bias of a product is that product's (fuse_matmul_add runs before).
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

struct Sum {
  NodeArg *x = nullptr, *bias = nullptr;
};

Sum find(const Node& gelu) {
  const NodeArg* sum = gelu.input(0);
  const Node* add = made_by(sum, "Add");
  for (size_t i = 0; add && i < 2; ++i)
    if (is_row_of(add->input(i), sum) && same_shape(add->input(1 - i), sum)) return {add->input(1 - i), add->input(i)};
  return {};
}

class BiasGeluRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_bias_gelu"; }
  std::vector<std::string> ops() const override { return {"Gelu"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && node.get_string("approximate", "none") == "none" && find(node).x;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Sum sum = find(node);
    Node* gelu = graph.add_node("com.microsoft", "BiasGelu", {sum.x, sum.bias}, {""}, {}, &node, node.name());
    gelu->metadata() = node.metadata();
    infer_node(*gelu);
    graph.replace_all_uses(node.output(0), gelu->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_bias_gelu", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 8, BiasGeluRule);

}  // namespace ortmodule
