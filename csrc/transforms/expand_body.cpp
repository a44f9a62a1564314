#include "transforms/expand_body.h"

#include <algorithm>
#include <vector>

#include "records/grad_context.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

// Notes of the replaced node ("source", "recompute") go to the nodes that the body made: those behind the results with
// ids from `first_id` on.
void inherit_metadata(const Node& node, const std::vector<NodeArg*>& results, size_t first_id) {
  if (node.metadata().empty()) return;
  std::vector<Node*> stack;
  const auto push = [&](const NodeArg* value) {
    if (value && value->producer() && value->producer()->id() >= first_id && value->producer()->metadata().empty())
      stack.push_back(value->producer());
  };
  for (const NodeArg* value : results) push(value);
  while (!stack.empty()) {
    Node* made = stack.back();
    stack.pop_back();
    made->metadata() = node.metadata();
    for (const NodeArg* in : made->inputs()) push(in);
  }
}

}  // namespace

bool expand_body(Graph& graph, Node& node) {
  if (!node.record() || !node.record()->body_fn()) return false;
  const size_t first_id = graph.node_id_bound();
  BodyContext body(graph, node);
  node.record()->body_fn()(body);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const NodeArg* out = node.outputs()[i];
    if (out && !body.results()[i] && (!out->uses().empty() || out->is_graph_output())) return false;
  }
  inherit_metadata(node, body.results(), first_id);

  struct Kept {
    size_t position;
    std::string name;
    NodeArg* result;
  };
  std::vector<Kept> kept;  // graph outputs that the node made
  for (size_t position = 0; position < graph.outputs().size(); ++position) {
    const NodeArg* out = graph.outputs()[position];
    if (out->producer() == &node) kept.push_back({position, out->name(), body.results()[out->output_index()]});
  }
  for (size_t i = 0; i < node.outputs().size(); ++i)
    if (node.outputs()[i] && body.results()[i]) graph.replace_all_uses(node.outputs()[i], body.results()[i]);
  const Phase phase = node.phase();
  graph.remove(&node);
  for (const Kept& k : kept) {  // at the end of the list: nothing in the graph reads them
    NodeArg* named = graph.find(k.name);
    if (!named) {
      Node* keeper = graph.add_node("", "Identity", {k.result}, {k.name});
      keeper->set_phase(phase);
      infer_node(*keeper);
      named = keeper->output(0);
    }
    graph.set_output(k.position, named);
  }
  return true;
}

bool shows_saved_output(const Node& node) {
  if (!node.record()) return false;
  const std::vector<FormalOutput>& formal = node.record()->outputs();
  for (size_t i = 0; i < std::min(formal.size(), node.outputs().size()); ++i)
    if (formal[i].saved && node.output(i) && !node.output(i)->uses().empty()) return true;
  return false;
}

}  // namespace ortmodule
