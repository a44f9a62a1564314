// Whose memory a node's results may lie in.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// The operands whose memory a node's results may share: of a view the first, of what no record describes all.
std::vector<NodeArg*> shared_operands(const Node& node);

}  // namespace ortmodule
