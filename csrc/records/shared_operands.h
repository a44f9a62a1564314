// Whose memory a node's results may lie in.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// The operands whose memory a node's results may share: of a view the first, of what no record describes all.
std::vector<NodeArg*> shared_operands(const Node& node);

// The graph inputs whose memory a value may show: it is one, or was made of one by nodes whose results share memory.
std::vector<NodeArg*> shown_inputs(NodeArg* value);

}  // namespace ortmodule
