// Gelu that is written out becomes one node, in graphs of inference:
//
//     0.5 x (1 + erf(x / sqrt 2))
//     0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the inner sum also as x (1 + 0.044715 x^2)
//
// with factors in any order, and squares and cubes as Mul or Pow.
#include <numbers>

#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr double kCubic = 0.044715;

// What is added to a number in a sum; null.
const NodeArg* beside(const NodeArg* value, double wanted) {
  const Node* add = made_by(value, "Add");
  for (size_t i = 0; add && i < 2; ++i)
    if (is_about(number(add->input(i)), wanted)) return add->input(1 - i);
  return nullptr;
}

// sqrt(2 / pi) (x + 0.044715 x^3), of x [...].
bool is_tanh_argument(const NodeArg* value, const NodeArg* x) {
  const double scale = std::sqrt(2 / std::numbers::pi);
  const Product outer = product_of(value);
  if (!is_about(outer.scale, scale)) return false;
  if (outer.factors.size() == 2) {
    const NodeArg* sum = outer.factors[outer.factors[0] == x];
    const NodeArg* square = beside(sum, 1);
    if (!square || outer.factors[outer.factors[0] != x] != x) return false;
    const Product p = product_of(square);
    return is_about(p.scale, kCubic) && p.is_power(x, 2);
  }
  const Node* sum = outer.factors.size() == 1 ? made_by(outer.factors[0], "Add") : nullptr;
  for (size_t i = 0; sum && i < 2; ++i) {
    const Product p = product_of(sum->input(1 - i));
    if (sum->input(i) == x && is_about(p.scale, kCubic) && p.is_power(x, 3)) return true;
  }
  return false;
}

struct Found {
  NodeArg* x = nullptr;
  const char* approximate = "none";
};

Found find(const Node& node) {
  const Product p = product_of(node.output(0), true);
  if (!is_about(p.scale, 0.5) || p.factors.size() != 2) return {};
  for (size_t i = 0; i < 2; ++i) {
    const NodeArg *x = p.factors[i], *function = beside(p.factors[1 - i], 1);
    if (!function || !same_shape(x, node.output(0))) continue;
    if (const Node* erf = made_by(function, "Erf")) {
      const Product inner = product_of(erf->input(0));
      if (is_about(inner.scale, std::numbers::sqrt2 / 2) && inner.is_power(x, 1))
        return {const_cast<NodeArg*>(x), "none"};
    }
    if (const Node* tanh = made_by(function, "Tanh"); tanh && is_tanh_argument(tanh->input(0), x))
      return {const_cast<NodeArg*>(x), "tanh"};
  }
  return {};
}

class GeluRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_gelu"; }
  std::vector<std::string> ops() const override { return {"Mul"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && is_floating(node.output(0)->type().dtype) && find(node).x;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Found found = find(node);
    Node* gelu = graph.add_node("", "Gelu", {found.x}, {""}, {{"approximate", std::string(found.approximate)}}, &node,
                                node.name());
    gelu->metadata() = node.metadata();
    infer_node(*gelu);
    graph.replace_all_uses(node.output(0), gelu->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_gelu", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 5, GeluRule);

}  // namespace ortmodule
