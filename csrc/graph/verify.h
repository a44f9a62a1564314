// Checks that edges agree from both sides; resolve() (records/resolve.h) checks what operators ask for.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// Throws kInternal naming the node or value when an edge, a use or an owner does not match its counterpart. Linear.
ORTMODULE_API void verify_edges(const Graph& graph);

}  // namespace ortmodule
