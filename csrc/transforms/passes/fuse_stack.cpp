// A Concat of Unsqueezes becomes a Stack: see ops/shape/stack.cpp.
//
// After the passes that follow rows through a Concat. A Concat that is a graph output stays: names of outputs are part
// of the interface.
#include <algorithm>

#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

// The only element of a constant, from the front of `rank` axes; -1 where it is something else.
int64_t only_axis(const NodeArg* axes, int64_t rank) {
  if (!axes || !axes->constant()) return -1;
  const std::vector<int64_t> ints = axes->constant()->to_ints();
  if (ints.size() != 1) return -1;
  return ints[0] < 0 ? ints[0] + rank : ints[0];
}

class StackRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_stack"; }
  std::vector<std::string> ops() const override { return {"Concat"}; }

  bool match(const Node& node, const TransformContext&) const override {
    const NodeArg* out = node.output(0);
    if (node.inputs().size() < 2 || out->is_graph_output() || !out->type().shape) return false;
    const auto rank = static_cast<int64_t>(out->type().shape->size());
    const int64_t given = node.get_int("axis", 0), axis = given < 0 ? given + rank : given;
    const DType type = out->type().dtype;
    // Vectors of sizes are made of scalars that are known before the run.
    if (rank < 2 || !is_floating(type)) return false;
    return std::all_of(node.inputs().begin(), node.inputs().end(), [&](const NodeArg* in) {
      const Node* made = in->producer();
      return made && made->qualified_op() == "Unsqueeze" && made->phase() == node.phase() && in->uses().size() == 1 &&
             !in->is_graph_output() && only_axis(made->input(1), rank) == axis;
    });
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    std::vector<Node*> views;
    std::vector<NodeArg*> parts;
    for (const NodeArg* in : node.inputs()) {
      views.push_back(in->producer());
      parts.push_back(in->producer()->input(0));
    }
    const auto rank = static_cast<int64_t>(node.output(0)->type().shape->size());
    const int64_t given = node.get_int("axis", 0);
    Node* stack = graph.add_node("ai.ortmodule", "Stack", parts, {""}, {{"axis", given < 0 ? given + rank : given}},
                                 &node, node.name());
    stack->metadata() = node.metadata();
    stack->set_phase(node.phase());
    infer_node(*stack);
    graph.replace_all_uses(node.output(0), stack->output(0));
    graph.remove(&node);
    for (Node* view : views) graph.remove(view);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_stack", PassLevel::kBasic, kForwardOnly, pass_place::kPatterns + 1, StackRule);

}  // namespace ortmodule
