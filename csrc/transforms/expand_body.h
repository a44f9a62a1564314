// Replaces a node by its record's body; what lower_portable, derivative_graph and decompose_attention share.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// False when the record has no body or the body cannot express this node (it left an output unset).
// A graph output keeps its name: an Identity node takes over there.
bool expand_body(Graph& graph, Node& node);

// Whether something reads an output that the operator's schema lacks: what that holds is a matter between two kernels
// (Note [Saved outputs]), and bodies of both or of neither may stand there.
bool shows_saved_output(const Node& node);

}  // namespace ortmodule
