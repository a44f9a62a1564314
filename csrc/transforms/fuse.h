// Joins clusters of elementwise operators, casts, counter-based dropout and reductions over the last or all but the
// last axis into FusedKernel nodes, each of which reads and writes memory once.
//
// Note [Clusters]
// Nodes are taken in execution order. A node joins the clusters that make its inputs when (a) they belong to the same
// half of the training step, (b) they have one iteration space, S = [.., N], or S and its rows [.., 1], and (c) no node
// outside the cluster that reads one of its values stands before the new node. The cluster runs where its last member
// stood. By (c) everything that reads it comes later, so that no cycle can arise and the order of all other nodes, of
// random draws above all, stays as it was; looking at the readers of a cluster's values keeps the pass near linear.
// It also joins, under the same conditions, clusters that read a value of the whole space which it reads, where only
// views stand between them: the gradients of one value to several others are one pass over it.
// Where a GPU's programs run, a node for which (c) does not hold runs early, at the cluster's place, if all that it
// reads is there and it alone reads a value as large as its own result: what is held from there on is no more than
// before, and that value is never stored (the gradient of a gate, which reads a product that nobody else reads).
// There, too, a value of another cluster whose operands a cluster reads anyway is computed in it once more (an
// activation that a gate's gradient reads beside what it was made of), and stored only where somebody else reads it. A
// value that anything else reads stays an output under its own name: what forward keeps for backward does not change.
// How an operator is expressed stands beside its record (records/fusion_context.h); operators that are not there are
// never fused.
//
// Precision: values inside a cluster are floats, whatever their types: 16-bit results are rounded when they are stored
// and not in between. float64 and integers are not fused.
// Not here: programs (records/fused_program.h), how they run (ops/fused/).
#pragma once

#include <functional>
#include <string>

#include "graph/graph.h"
#include "records/prices.h"

namespace ortmodule {

struct FusionResult {
  size_t kernels = 0;  // FusedKernel nodes made
  size_t nodes = 0;    // nodes that they replace
};

// By the name of a provider; of an empty one, before placement, the host's.
using PricesOf = std::function<Prices(const std::string& provider)>;

// Types must be inferred; new nodes have theirs. The graph's order must be topological and stays so. Bounds of a
// cluster are the prices of its nodes' provider.
FusionResult fuse(Graph& graph, const PricesOf& prices = [](const std::string&) { return Prices(); });

}  // namespace ortmodule
