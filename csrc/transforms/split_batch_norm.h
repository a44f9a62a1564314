// Batch norm with the batch's statistics as two nodes, forward and backward: sums over the batch, and what is computed
// of each element with them.
//
// As one operator its results and gradients are passes over memory of their own, beside those of ReLU, of residual sums
// and of casts. Where a device has generated programs, the second node of each half is a few instructions in the
// program of its neighbours. ReLU's gradient is found by that program and by the sums, from x, where ReLU alone reads
// the result: it is never stored. On the CPU the operator as a whole has kernels that read a plane once.
// What runs the nodes: ops/norm/batch_statistics.cpp.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// BatchNormTraining and BatchNormTrainingGrad of matrices and pictures in float, float16 and bfloat16. Types must be
// inferred; new nodes have theirs. Values keep their names. Returns how many nodes were split. Runs before it is chosen
// what forward keeps.
size_t split_batch_norm(Graph& graph);

}  // namespace ortmodule
