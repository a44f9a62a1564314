// x * sigmoid(alpha * x) becomes one node, QuickGelu, which has a kernel and a gradient.
#include <optional>
#include <vector>

#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

// The number in a constant of one element; none for any other value.
std::optional<double> number(const NodeArg* value) {
  if (!value || !value->constant()) return std::nullopt;
  const std::vector<double> numbers = value->constant()->to_doubles();
  return numbers.size() == 1 ? std::optional(numbers[0]) : std::nullopt;
}

class QuickGeluRule final : public RewriteRule {
 public:
  const char* name() const override { return "fuse_quick_gelu"; }
  std::vector<std::string> ops() const override { return {"Mul"}; }

  bool match(const Node& node, const TransformContext&) const override {
    const Node* gate = node.input(1)->producer();
    if (!gate || gate->op() != "Sigmoid") return false;
    const Node* scaled = gate->input(0)->producer();
    return scaled && scaled->op() == "Mul" && scaled->input(0) == node.input(0) && number(scaled->input(1));
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const double alpha = *number(node.input(1)->producer()->input(0)->producer()->input(1));
    Node* fused = graph.add_node("com.microsoft", "QuickGelu", {node.input(0)}, {""}, {{"alpha", alpha}}, &node);
    fused->set_phase(node.phase());
    infer_node(*fused);
    graph.replace_all_uses(node.output(0), fused->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_quick_gelu", PassLevel::kBasic, kForwardOnly, pass_place::kUser, QuickGeluRule);

}  // namespace ortmodule
