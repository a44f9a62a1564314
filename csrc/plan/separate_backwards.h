// Which outputs of a training graph may have a backward of their own after another output's has freed what it read.
//
// Note [Separate backwards]
// In eager a backward frees what the nodes that it visits saved: a second one, through another output, runs where it
// meets none of these nodes, and raises where it does. Here a whole step is one node, so that its graph has to say
// which outputs meet: two outputs do when some backward operator carries gradients of both and reads elements of a
// forward value (the gradient is linear, so that an operator that carries only one output's vanishes from the other's
// backward). Sizes do not count: eager keeps those as numbers.
// Not here: what happens with it at run time (runtime/training_agent.h).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// By position among the outputs that can receive a gradient.
using OutputSet = std::vector<bool>;

struct SeparateBackwards {
  std::vector<OutputSet> meets;                      // per output: those whose backward frees what its own reads
  std::unordered_map<std::string, OutputSet> needs;  // per forward value that backward reads: for whose gradient
};

// `dys[k]`: the gradient of output k, a graph input; null where it is not in the graph. Backward operators that only
// other values' recomputation needs count for whoever needs these. Near linear in nodes, for few outputs.
SeparateBackwards separate_backwards(const Graph& graph, const std::vector<NodeArg*>& dys);

}  // namespace ortmodule
