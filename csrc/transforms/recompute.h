// Which values forward keeps for backward, and which backward computes again.
//
// Note [The cut]
// Every value that backward reads is either kept (it costs its bytes from forward's end on) or computed again from
// values that are available in turn (it costs time). Over a training graph the cheapest choice is a minimum cut:
// keeping is an edge of `bytes`, recomputing one of `weight * time`, and what cannot be had again (random draws,
// running statistics) is an edge without bound. As in Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
// what is recomputed is cheap beside what is kept; unlike there, no segment is chosen by hand. One weight gives one
// point of the trade of memory for time; a memory budget is met by lowering the weight until the kept bytes fit.
//
// Time is counted in bytes moved, at the prices of the device (records/prices.h): a streaming kernel costs what it
// reads and writes, more where it is not cheap (exponentials) and its operator says no other number, a contraction its
// operations over the device's operations per byte. Without a budget contractions are never repeated (their rates
// differ too much to call any of them nearly free), nor are autocast's copies of graph inputs, and the weight is as low
// as a small share of the step's time allows. What a node that runs again reads of graph inputs are copies, which count
// as kept (earlier_values.h). Not here: the order and memory of steps (plan/).
#pragma once

#include <optional>
#include <string>
#include <unordered_set>

#include "graph/graph.h"
#include "records/prices.h"

namespace ortmodule {

struct RecomputeOptions {
  SymbolTable sizes;                              // what a symbol counts as; 64 where it is missing
  std::unordered_set<const NodeArg*> readable{};  // graph inputs that backward may read though it did not before
  // Bytes, or up to 1 a fraction of what would be kept if nothing was recomputed. None: only what is nearly free.
  std::optional<double> budget{};
  Prices prices{};    // of the provider that runs both halves
  double little = 0;  // bytes: where no more are kept and there is no budget, only views are repeated
};

struct RecomputeResult {
  double kept_before = 0, kept_after = 0;  // bytes, as estimated
  size_t nodes = 0;                        // added to backward
};

// Rewrites the backward half of a training graph. Types must be inferred; new nodes have theirs.
RecomputeResult recompute(Graph& graph, const RecomputeOptions& options);

// Rewrites another backward half over a forward that keeps `kept` (names); false, and the graph is spoiled, when
// backward reads something that cannot be had from those values.
bool recompute_from(Graph& graph, const std::unordered_set<std::string>& kept);

}  // namespace ortmodule
