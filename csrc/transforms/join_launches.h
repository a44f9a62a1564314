// Fewer launches and fewer passes over memory, where a device takes longer to begin a kernel than to run a small one.
//
// Five rewrites of a training graph, before nodes are placed and fused.
//
// Casts: the narrow copies that autocast makes of graph inputs are one CastAll at the head of forward. Those that
// backward reads, which are held from there on anyway, and vectors; what a fused program makes for nothing stays. So
// are the copies of inputs that nodes which run again read (earlier_values.h).
//
// Counters: integers that a step counts up (how many batches a batch norm has seen) are one AddAll.
//
// Weights: a Cast of LinearGrad's dw to float is an attribute of LinearGrad (`wide`), whose product adds in floats.
//
// Gradients: what is made narrow by other products (ConvGrad) and handed out as a float is widened 16 at a time, by one
// CastAll where the last of them is.
//
// Biases: LinearGrad's db is a ReduceSum of dy, in front of it, where dy is made by something that a program expresses:
// so the sum joins that program. Where dy is a Concat, but for views, that makes the sum too (ConcatSum).
//
// On the CPU a conversion is a part of what reads it and the library's product gives db in passing: nothing is gained.
// Not here: which nodes become one program (fuse.h).
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// Types must be inferred; new nodes have theirs. Values keep their names. Returns how many nodes are fewer or cheaper.
size_t join_launches(Graph& graph);

}  // namespace ortmodule
