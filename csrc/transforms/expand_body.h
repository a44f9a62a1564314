// Replaces a node by its record's body; what lower_portable and decompose_attention share.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// False when the record has no body or the body cannot express this node (it left an output unset).
// A graph output keeps its name: an Identity node takes over there.
bool expand_body(Graph& graph, Node& node);

}  // namespace ortmodule
