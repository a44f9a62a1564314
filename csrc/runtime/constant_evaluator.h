// Runs one node on constant inputs, for constant folding.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// One constant per output, or nothing when the node has no CPU kernel or its kernel refuses.
std::vector<TensorData> evaluate_constant_node(const Node& node);

}  // namespace ortmodule
