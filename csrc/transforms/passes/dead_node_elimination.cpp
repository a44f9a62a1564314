// Removes nodes whose outputs nobody uses, then optional outputs and initializers that nobody uses.
//
// Why outputs too: an output that exists is computed (a Dropout mask, MaxPool's indices). Nodes with a side effect
// stay, and so do those that draw from torch's generator as eager would: what is drawn after them hangs on it.
#include "records/draws.h"
#include "records/registry.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

bool is_used(const NodeArg* value) { return value && (!value->uses().empty() || value->is_graph_output()); }

bool is_live(const Node& node, const TransformContext& context) {
  if (node.record() && node.record()->has(kSideEffect)) return true;
  // With dropout="fast" no mask is eager's, and none hangs on those before it.
  if (draws(node) && !(is_dropout(node) && context.options.dropout == "fast")) return true;
  for (const NodeArg* out : node.outputs())
    if (is_used(out)) return true;
  return false;
}

class DeadNodeElimination : public GraphTransformer {
 public:
  const char* name() const override { return "dead_node_elimination"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    size_t modifications = 0;
    // From the back: removing a node can make only earlier ones dead.
    const std::vector<Node*> nodes = graph.nodes();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      if (!is_live(**it, context)) {
        graph.remove(*it);
        ++modifications;
        continue;
      }
      modifications += drop_outputs(graph, **it);
    }
    return modifications + graph.remove_unused_initializers();
  }

 private:
  static size_t drop_outputs(Graph& graph, Node& node) {
    const OpRecord* record = node.record();
    if (!record) return 0;
    size_t dropped = 0;
    for (size_t i = node.outputs().size(); i-- > 0;) {
      if (!node.output(i) || is_used(node.output(i)) || i >= record->outputs().size()) continue;
      const FormalOutput& formal = record->outputs()[i];
      if (!formal.saved && formal.presence != Presence::kOptional) continue;
      graph.drop_output(&node, i);
      ++dropped;
    }
    return dropped;
  }
};

}  // namespace

ORTMODULE_PASS(DeadNodeElimination, PassLevel::kBasic, kBothStages, pass_place::kLast);

}  // namespace ortmodule
