// Lets the graph's other work run while collectives are on their way.
//
// Each collective becomes a start and a wait (Note [Collectives]). A start moves to the first place at which its
// operand is there, as long as what is on its way together stays within a window of bytes (what is gathered ahead of
// its use costs memory); a wait moves to the first reader of the result, or to where its room is needed, or to the end
// of its half. Starts keep their order, but for gathers of graph inputs that have a window of their own: backward comes
// to the sum of a layer's gradients before it reads the weights of the next, which are there to be gathered meanwhile.
// Who overtakes whom depends on sizes alone that are the same on all ranks.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// What may be on its way at one time, besides what has a window of its own (`window`).
constexpr double kCollectiveWindow = 64.0 * (1 << 20);

// Returns how many collectives were split. `sizes` of the call that is compiled for; near linear in nodes.
size_t split_collectives(Graph& graph, const SymbolTable& sizes, double window = kCollectiveWindow);

}  // namespace ortmodule
