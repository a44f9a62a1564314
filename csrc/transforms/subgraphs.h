// What transforms do about the subgraphs of If, Loop, Scan and SequenceMap.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace ortmodule {

// Gives subgraphs their own initializer for each captured value that is a small constant outside, so that type rules
// and kernels in there know its elements. Nested subgraphs too. Returns the number of values.
size_t share_constants_with_subgraphs(Graph& graph);

// Calls `f` for each subgraph of the graph's nodes, outermost first.
void for_all_subgraphs(Graph& graph, const std::function<void(Graph&)>& f);

}  // namespace ortmodule
