#include "plan/constant_placement.h"

#include "records/registry.h"

namespace ortmodule {
namespace {

bool is_host_input(const Node& node, size_t index) {
  const FormalInput* formal = node.record()->formal_input(index);
  return formal && formal->host;
}

// The operands that an operator computes with, constants aside: how many, and how many of them are on the host.
struct Operands {
  size_t count = 0, on_host = 0;
};

Operands operands_of(const Node& node, const std::vector<char>& on_host) {
  Operands found;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const NodeArg* value = node.input(i);
    if (!value || value->constant() || is_host_input(node, i)) continue;
    ++found.count;
    found.on_host += on_host[value->id()] != 0;
  }
  return found;
}

}  // namespace

ConstantPlacement::ConstantPlacement(const Graph& graph) : on_host_(graph.value_id_bound(), 0) {
  graph.for_each([&](const Node& node) {
    if (!node.record()) return;
    const Operands operands = operands_of(node, on_host_);
    const bool host = node.record()->has(kHostOutput) || (operands.count > 0 && operands.on_host == operands.count);
    for (const NodeArg* output : node.outputs())
      if (output) on_host_[output->id()] = host;
  });
}

ConstantPlacement::Place ConstantPlacement::needed(const NodeArg& value, const Use& use) const {
  if (is_host_input(*use.node, use.index)) return Place::kHost;
  const Operands operands = operands_of(*use.node, on_host_);
  if (operands.count > 0 && operands.on_host == operands.count) return Place::kHost;
  const bool number = value.constant()->dims.empty();
  return number && operands.count > 0 && use.node->record()->has(kElementwise) ? Place::kEither : Place::kDevice;
}

bool ConstantPlacement::on_host(const NodeArg& value) const {
  if (value.is_graph_output()) return false;
  for (const Use& use : value.uses())
    if (needed(value, use) == Place::kDevice) return false;
  return true;
}

void separate_constants(Graph& graph) {
  const ConstantPlacement placement(graph);
  for (NodeArg* value : graph.initializers()) {
    std::vector<Use> of_host;
    for (const Use& use : value->uses())
      if (placement.needed(*value, use) == ConstantPlacement::Place::kHost) of_host.push_back(use);
    if (of_host.empty() || placement.on_host(*value)) continue;
    NodeArg* copy = graph.add_initializer(graph.fresh_name(value->name() + "_on_host"), *value->constant());
    copy->set_type(value->type());
    copy->set_known_dims(value->known_dims());
    for (const Use& use : of_host) use.node->set_input(use.index, copy);
  }
  graph.for_each([](Node& node) {
    for (const auto& [name, attribute] : node.attributes())
      if (const auto* body = std::get_if<std::shared_ptr<Graph>>(&attribute)) separate_constants(**body);
  });
}

}  // namespace ortmodule
