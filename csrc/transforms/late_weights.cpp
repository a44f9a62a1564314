#include "transforms/late_weights.h"

#include <algorithm>
#include <vector>

#include "records/registry.h"
#include "transforms/parts.h"

namespace ortmodule {
namespace {

// Nodes in the graph's order, and where each stands.
struct Order {
  std::vector<Node*> nodes;
  std::vector<size_t> place;  // by node id

  explicit Order(const Graph& graph) : nodes(graph.nodes()), place(graph.node_id_bound(), 0) {
    for (size_t i = 0; i < nodes.size(); ++i) place[nodes[i]->id()] = i;
  }
  size_t of(const Node* node) const { return place[node->id()]; }
};

bool reads(const Node& node, const NodeArg* value) {
  return std::find(node.inputs().begin(), node.inputs().end(), value) != node.inputs().end();
}

// The second run that makes what `gradient` alone reads as the layer's input; null where that is something else.
Node* second_run(const Node& gradient) {
  const NodeArg* x = gradient.input(1);
  if (!x || x->is_graph_output() || x->uses().size() != 1) return nullptr;
  Node* made = x->producer();
  return fuses(made) && made->phase() == Phase::kBackward && made->outputs().size() == 1 ? made : nullptr;
}

// The first reader of dx in the graph's order, if it reads a value of all elements that `again` reads too.
Node* next_gradient(const Node& gradient, const Node& again, const Order& order) {
  const NodeArg *dx = gradient.output(0), *made = again.output(0);
  if (!dx || dx->is_graph_output() || dx->uses().empty() || dx->type().shape != made->type().shape) return nullptr;
  Node* first = dx->uses()[0].node;
  for (const Use& use : dx->uses())
    if (order.of(use.node) < order.of(first)) first = use.node;
  if (!fuses(first)) return nullptr;
  const bool shared = std::any_of(again.inputs().begin(), again.inputs().end(), [&](const NodeArg* in) {
    return in && in->type().shape == made->type().shape && reads(*first, in);
  });
  return shared ? first : nullptr;
}

// Behind `node` and the nodes of programs and views that follow it; null: the end.
Node* behind_programs(const Node& node, const Order& order) {
  size_t i = order.of(&node);
  while (i < order.nodes.size() && (fuses(order.nodes[i]) || order.nodes[i]->record()->has(kView))) ++i;
  return i < order.nodes.size() ? order.nodes[i] : nullptr;
}

}  // namespace

size_t delay_weight_gradients(Graph& graph) {
  size_t delayed = 0;
  const Order order(graph);
  for (Node* node : order.nodes) {
    if (!is(node, "ai.ortmodule", "LinearGrad")) continue;
    NodeArg* dw = node->output(1);
    if (!dw || !dw->uses().empty()) continue;  // who reads it would have to wait, too
    Node* again = second_run(*node);
    Node* gradient = again ? next_gradient(*node, *again, order) : nullptr;
    Node* before = gradient ? behind_programs(*gradient, order) : nullptr;
    if (!before) continue;
    Node* late = added_before(graph, "ai.ortmodule", "LinearGrad", {node->input(0), node->input(1), nullptr}, 2,
                              node->attributes(), *before);
    late->metadata() = node->metadata();
    late->set_phase(node->phase());
    hand_over(graph, dw, late, 1);
    graph.drop_output(late, 0);
    node->set_input(1, nullptr);
    graph.move_before(again, gradient);
    ++delayed;
  }
  return delayed;
}

}  // namespace ortmodule
