#include "graph/verify.h"

#include "base/status.h"

namespace ortmodule {

void verify_edges(const Graph& graph) {
  size_t edges = 0, uses = 0;
  const auto check_value = [&](const NodeArg* value) {
    ORTMODULE_INTERNAL(graph.find(value->name()) == value, "value '", value->name(), "' is not owned by its graph");
    uses += value->uses().size();
    for (const Use& use : value->uses())
      ORTMODULE_INTERNAL(use.node->input(use.index) == value, "value '", value->name(), "' lists a use by ",
                         use.node->describe(), ", whose input ", use.index, " is another value");
  };
  graph.for_each([&](Node& node) {
    for (const NodeArg* in : node.inputs()) {
      if (!in) continue;
      ++edges;
      ORTMODULE_INTERNAL(graph.find(in->name()) == in, node.describe(), " reads a value of another graph");
    }
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      const NodeArg* out = node.outputs()[i];
      if (!out) continue;
      ORTMODULE_INTERNAL(out->producer() == &node && out->output_index() == i, "value '", out->name(),
                         "' does not know its producer ", node.describe());
      check_value(out);
    }
  });
  for (const NodeArg* in : graph.inputs()) check_value(in);
  for (const NodeArg* value : graph.initializers())
    if (!value->is_graph_input()) check_value(value);
  ORTMODULE_INTERNAL(edges == uses, "graph '", graph.name(), "' has ", edges, " edges but ", uses, " uses");
}

}  // namespace ortmodule
