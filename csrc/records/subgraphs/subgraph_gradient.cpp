#include "records/subgraphs/subgraph_gradient.h"

#include "base/status.h"
#include "graph/subgraph.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

BodyGradientBuilder registered = nullptr;

// What the user knows of it: a node that only draws for another one is named by that.
std::string drawing(const Node& node) {
  const bool draws_alone = node.inputs().empty() && node.output(0) && !node.output(0)->uses().empty();
  return draws_alone ? node.output(0)->uses()[0].node->op() : node.op();
}

void refuse_random(const Graph& graph, const Node& owner) {
  graph.for_each([&](Node& node) {
    ORTMODULE_CHECK(!node.record() || !node.record()->has(kRandom), kUnsupported, "[", owner.op(),
                    "] a subgraph with the random operator ", drawing(node), " cannot be differentiated (",
                    owner.describe(), ")");
    for_each_subgraph(node, [&](const std::string&, Graph& inner) { refuse_random(inner, owner); });
  });
}

NodeArg* emit(Graph& graph, const std::string& op, NodeArg* input, Attributes attributes = {}) {
  Node* node = graph.add_node("", op, {input}, {graph.fresh_name(input->name() + "_" + op)}, std::move(attributes));
  infer_node(*node);
  return node->output(0);
}

NodeArg* zeros_like(Graph& graph, NodeArg* value) {
  TensorData zero = TensorData::scalar(value->type().dtype, 0);
  zero.dims = {1};
  return emit(graph, "ConstantOfShape", emit(graph, "Shape", value), {{"value", zero}});
}

}  // namespace

void set_body_gradient_builder(BodyGradientBuilder builder) { registered = builder; }

BodyGradient differentiate_body(const Graph& body, const std::vector<size_t>& ys,
                                const std::vector<std::pair<std::string, TypeInfo>>& xs, const std::string& tag,
                                const Node& owner) {
  ORTMODULE_INTERNAL(registered, "no builder of gradients is registered");
  refuse_random(body, owner);
  BodyGradient result;
  result.graph = body.clone();
  Graph& graph = *result.graph;
  std::vector<NodeArg*> y_values, x_values;
  for (const size_t i : ys) {
    // A value of its own, also where two outputs are one value, and whose name says which output it is.
    NodeArg* y = graph.outputs()[i];
    Node* own = graph.add_node("", "Identity", {y}, {graph.fresh_name(str("y_", tag, "_", i))});
    infer_node(*own);
    y_values.push_back(own->output(0));
  }
  for (const auto& [name, type] : xs) {
    NodeArg* x = graph.find(name);
    x_values.push_back(x && x->is_graph_input() ? x : graph.add_input(name, type));
  }
  graph.clear_outputs();
  const BodyGradientValues values = registered(graph, y_values, x_values);
  for (const NodeArg* dy : values.dys) result.dy_names.push_back(dy ? dy->name() : "");
  for (size_t i = 0; i < x_values.size(); ++i)
    graph.add_output(values.dxs[i] ? values.dxs[i] : zeros_like(graph, x_values[i]));
  graph.for_each([](Node& node) { node.set_phase(Phase::kForward); });
  return result;
}

}  // namespace ortmodule
