#include "records/subgraphs/copy_nodes.h"

#include "graph/subgraph.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// The record at the version that the body imports; null where the registry knows none (resolve() says so).
const OpRecord* record_of(const Node& node) {
  if (node.record()) return node.record();
  const auto& opsets = node.graph().opsets();
  const auto it = opsets.find(node.domain());
  return Registry::instance().find(node.domain(), node.op(), it == opsets.end() ? INT64_MAX : it->second);
}

}  // namespace

std::vector<std::pair<Node*, Node*>> copy_nodes(const Graph& body, Node& site, ValueMap& values) {
  Graph& graph = site.graph();
  for (const NodeArg* value : body.initializers())
    values[value] = graph.add_initializer(graph.fresh_name(site.name() + "/" + value->name()), *value->constant());
  std::vector<std::pair<Node*, Node*>> made;
  body.for_each([&](Node& inner) {
    Node* node =
        graph.add_node(inner.domain(), inner.op(), {}, {}, inner.attributes(), &site, site.name() + "/" + inner.name());
    for (size_t i = 0; i < inner.outputs().size(); ++i)
      if (const NodeArg* out = inner.outputs()[i])
        values[out] = graph.materialize_output(node, i, site.name() + "/" + out->name());
    node->metadata() = inner.metadata();
    for (const auto& [key, value] : site.metadata())
      if (key != kOverloadKey) node->metadata().emplace(key, value);
    node->set_phase(site.phase());
    node->set_record(record_of(inner));
    made.emplace_back(&inner, node);
  });
  // Inputs last: a body that is not resolved yet may list a node before the one that it reads from.
  for (const auto& [inner, node] : made)
    for (size_t i = 0; i < inner->inputs().size(); ++i)
      node->set_input(i, inner->inputs()[i] ? values.at(inner->inputs()[i]) : nullptr);
  return made;
}

}  // namespace ortmodule
