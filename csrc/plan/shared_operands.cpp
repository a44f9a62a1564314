#include "plan/shared_operands.h"

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

}  // namespace ortmodule
