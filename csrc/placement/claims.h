// Which provider runs each node; the first half of place() (partition.h).
#pragma once

#include <unordered_set>

#include "placement/partition.h"

namespace ortmodule {

// Gives each node its provider and device, and makes one node of what is claimed as one. `born` holds the graph's
// inputs that are numbers of the host, and gets every other value that is born there. Throws kUnsupported for a node
// that no provider runs.
void assign_providers(Graph& graph, const Providers& providers, std::unordered_set<const NodeArg*>& born,
                      PlacementResult& result);

}  // namespace ortmodule
