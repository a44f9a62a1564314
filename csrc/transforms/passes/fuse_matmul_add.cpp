// MatMul(x, w) + b with a constant matrix w [k, n] and a constant b [n] becomes Linear(x, w transposed, b), in graphs
// of inference: the bias is where the product's sums begin. The Transpose is a view.
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

// The product of a sum, and which input of the sum it is; null.
const Node* product_of_sum(const Node& add, size_t i) {
  const Node* matmul = made_by(add.input(i), "MatMul");
  if (!matmul || !matmul->input(1)->constant() || !add.input(1 - i)->constant()) return nullptr;
  const auto &w = matmul->input(1)->type().shape, &b = add.input(1 - i)->type().shape,
             &x = matmul->input(0)->type().shape;
  const bool fits = w && b && x && w->size() == 2 && b->size() == 1 && x->size() >= 2 && w->back() == b->back();
  return fits ? matmul : nullptr;
}

class MatMulAddRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_matmul_add"; }
  std::vector<std::string> ops() const override { return {"Add"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && is_floating(node.output(0)->type().dtype) &&
           (product_of_sum(node, 0) || product_of_sum(node, 1));
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const size_t place = product_of_sum(node, 0) ? 0 : 1;
    const Node& matmul = *product_of_sum(node, place);
    const auto add = [&](const char* domain, const char* op, const std::vector<NodeArg*>& inputs,
                         Attributes attributes) {
      Node* added = graph.add_node(domain, op, inputs, {""}, std::move(attributes), &node, matmul.name());
      added->metadata() = matmul.metadata();
      infer_node(*added);
      return added->output(0);
    };
    NodeArg* w = add("", "Transpose", {matmul.input(1)}, {{"perm", std::vector<int64_t>{1, 0}}});
    graph.replace_all_uses(node.output(0),
                           add("ai.ortmodule", "Linear", {matmul.input(0), w, node.input(1 - place)}, {}));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_matmul_add", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 7, MatMulAddRule);

}  // namespace ortmodule
