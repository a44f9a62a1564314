#include "transforms/lower_portable.h"

#include "base/status.h"
#include "ops/registry.h"
#include "ops/resolve.h"
#include "transforms/expand_body.h"
#include "transforms/lower_sizes.h"
#include "transforms/passes.h"
#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

// Bodies may use operators with bodies, to this depth.
constexpr int kMaxDepth = 8;

bool lower_node(Graph& graph, Node& node) {
  if (node.domain() != kOwnDomain && node.domain() != kAtenDomain) return false;
  const std::string described = node.describe();
  const bool lowered =
      node.domain() == kOwnDomain && (node.op() == "Sizes" ? lower_sizes(graph, node) : expand_body(graph, node));
  ORTMODULE_CHECK(lowered, kUnsupported, described,
                  " has no form in standard ONNX operators; a portable model cannot hold it");
  return true;
}

void lower_nodes(Graph& graph) {
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    bool changed = false;
    graph.for_each([&](Node& node) { changed = lower_node(graph, node) || changed; });
    if (!changed) break;
  }
}

// Equal Shape and Gather nodes of many Sizes become one; what bodies left unused goes, and saved outputs with it.
void clean_up(Graph& graph) {
  const TransformContext context;
  make_common_subexpression_elimination()->apply(graph, context);
  make_dead_node_elimination()->apply(graph, context);
}

}  // namespace

std::unique_ptr<Graph> lower_portable(const Graph& graph) {
  std::unique_ptr<Graph> copy = graph.clone();
  lower_nodes(*copy);
  for_all_subgraphs(*copy, lower_nodes);
  clean_up(*copy);
  for_all_subgraphs(*copy, clean_up);
  resolve(*copy);
  copy->opsets().erase(kOwnDomain);
  return copy;
}

}  // namespace ortmodule
