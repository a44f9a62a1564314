// Copies to the host of what a step is given begin with the step.
//
// A device works through its queue in order, so that a copy which is queued where the host needs it comes behind all
// that was queued before, and the host waits for that; then the device waits until there is something in its queue
// again. Of a graph input, or a view of one, a copy at the head of forward is done while the device computes what the
// host has queued behind it.
//
// Where the host needs the copy at once nothing is gained, and nothing lost.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// The graph has been placed; its order stays topological. Returns how many copies moved.
size_t begin_copies_early(Graph& graph);

}  // namespace ortmodule
