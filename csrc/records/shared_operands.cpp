#include "records/shared_operands.h"

#include <unordered_set>

#include "graph/subgraph.h"
#include "records/registry.h"

namespace ortmodule {

std::vector<NodeArg*> shared_operands(const Node& node) {
  const OpRecord& record = *node.record();
  const bool unknown =
      node.domain() == kAtenDomain || record.has(kCustom) || record.has(kTakesContainers) || has_body(node);
  if (unknown) return node.inputs();
  return record.has(kView) ? std::vector<NodeArg*>{node.input(0)} : std::vector<NodeArg*>();
}

std::vector<NodeArg*> shown_inputs(NodeArg* value) {
  std::vector<NodeArg*> found, reached{value};
  std::unordered_set<const NodeArg*> seen;
  while (!reached.empty()) {
    NodeArg* next = reached.back();
    reached.pop_back();
    if (!next || !seen.insert(next).second) continue;
    if (next->is_graph_input()) found.push_back(next);
    if (!next->producer()) continue;
    const std::vector<NodeArg*> operands = shared_operands(*next->producer());
    reached.insert(reached.end(), operands.begin(), operands.end());
  }
  return found;
}

}  // namespace ortmodule
