#include "transforms/lower_portable.h"

#include "base/status.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/expand_body.h"
#include "transforms/lower_sizes.h"
#include "transforms/pass_registry.h"
#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

// Bodies may use operators with bodies, to this depth.
constexpr int kMaxDepth = 8;

bool lower_node(Graph& graph, Node& node) {
  const bool own = node.domain() == kOwnDomain || node.domain() == kAtenDomain;
  if (!own && node.domain() == "com.microsoft") return expand_body(graph, node);
  if (!own && !shows_saved_output(node)) return false;
  const std::string described = node.describe();
  const bool lowered =
      node.domain() != kAtenDomain && (node.op() == "Sizes" ? lower_sizes(graph, node) : expand_body(graph, node));
  ORTMODULE_CHECK(lowered, kUnsupported, described,
                  " has no form in standard ONNX operators; a portable model cannot hold it");
  return true;
}

// From the back: a gradient operator's body may leave a saved output of the forward operator unread.
void lower_nodes(Graph& graph) {
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    bool changed = false;
    const std::vector<Node*> nodes = graph.nodes();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) changed = lower_node(graph, **it) || changed;
    if (!changed) break;
  }
}

// Equal Shape and Gather nodes of many Sizes become one; what bodies left unused goes, and saved outputs with it.
void clean_up(Graph& graph) {
  const TransformContext context;
  make_pass("common_subexpression_elimination")->apply(graph, context);
  make_pass("dead_node_elimination")->apply(graph, context);
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
