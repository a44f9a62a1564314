#include "transforms/schema_types.h"

#include <map>

#include "records/resolve.h"
#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

constexpr size_t kIdInputs[] = {0, 1, 7, 8};  // ids, segments, the mask and positions
constexpr size_t kCounts = 1;                 // an output

bool is_embedding(const Node& node) { return node.qualified_op() == "com.microsoft::EmbedLayerNormalization"; }

bool is_wide(const Node& node, size_t i) { return node.input(i) && node.input(i)->type().dtype == DType::kInt64; }

bool differs(const Graph& graph) {
  for (const Node* node : graph.nodes()) {
    if (!is_embedding(*node)) continue;
    if (!node->output(kCounts)) return true;
    for (const size_t i : kIdInputs)
      if (is_wide(*node, i)) return true;
  }
  return false;
}

void narrow(Graph& graph) {
  const std::vector<Node*> nodes = graph.nodes();
  std::map<NodeArg*, NodeArg*> narrowed;
  for (Node* node : nodes) {
    if (!is_embedding(*node)) continue;
    if (!node->output(kCounts)) graph.materialize_output(node, kCounts, node->name() + "/mask_index");
    infer_node(*node);
    for (const size_t i : kIdInputs) {
      if (!is_wide(*node, i)) continue;
      NodeArg*& ids = narrowed[node->input(i)];
      if (!ids) {
        Node* cast = graph.add_node("", "Cast", {node->input(i)}, {""}, {{"to", static_cast<int64_t>(DType::kInt32)}},
                                    node, node->name() + "/Cast");
        infer_node(*cast);
        ids = cast->output(0);
      }
      node->set_input(i, ids);
    }
  }
}

}  // namespace

std::unique_ptr<Graph> with_schema_types(const Graph& graph) {
  bool found = differs(graph);
  std::unique_ptr<Graph> copy = graph.clone();
  for_all_subgraphs(*copy, [&](Graph& inner) { found = found || differs(inner); });
  if (!found) return nullptr;
  narrow(*copy);
  for_all_subgraphs(*copy, narrow);
  resolve(*copy, {.infer = false});
  return copy;
}

}  // namespace ortmodule
