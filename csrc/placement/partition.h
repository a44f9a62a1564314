// Gives each node a provider and each value a place, and inserts the transfers between them.
//
// Note [Placement]
// Nodes are taken in execution order. One whose operands are born on the host (of sizes, of a loop's count) stays there
// while its results are small, since operators run where their operands are. The others go to the first provider, by
// priority, that claims them; several that are claimed as one become a node with a subgraph. What a provider claims
// depends on nodes alone, and a node's place on what it reads: forward is placed alike whichever backward it has.
// A value lies where its node runs, or on the host where the operator says so. Where a node reads it elsewhere, a
// MemcpyToHost or MemcpyToDevice node stands in front of its first reader there, one for each half of the step: nothing
// is kept on two devices for backward. So a host read of a device's value is a node, and every copy can be counted.
// Graph inputs lie at home, the device of the module; outputs come home, but for what was born on the host.
// A constant lies where it is read; one that is read in two places is two. A number beside a tensor may stay on the
// host: ATen takes it from there without a transfer. The bodies of If, Loop and Scan are placed like the graph; their
// home is the device of the node, and what they capture stays where it is.
// Not here: streams and waits (plan/streams.h), how a copy is done (ops/placement).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "placement/provider.h"

namespace ortmodule {

constexpr const char* kHost = "cpu";

struct Providers {
  std::string home;                                             // where inputs lie and outputs go
  std::vector<std::shared_ptr<const ExecutionProvider>> order;  // by priority; the last one is the host
  // Whether there is but the host: nothing has to be placed.
  bool only_host() const;
};

// `specs` in order of priority; the home's device is added where there are none, the host at the end where it is
// missing. Throws what ProviderRegistry::make throws, and kInvalidArgument for a provider that is named twice.
Providers make_providers(const std::vector<ProviderSpec>& specs, const std::string& home);

struct PlacementResult {
  std::map<std::string, size_t> nodes;  // by provider, transfers aside
  size_t to_host = 0, to_device = 0;    // transfers; from device to device is `to_device`
  size_t fused = 0;                     // claims of several nodes
};

// Places the graph, whose first `forward_outputs` outputs are forward's. The order must be topological and stays so;
// types must be inferred, and new nodes have theirs. Throws kUnsupported for a node that no provider runs.
PlacementResult place(Graph& graph, const Providers& providers, size_t forward_outputs);

}  // namespace ortmodule
