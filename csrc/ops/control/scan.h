// Axes and directions of a Scan node, read once from its attributes.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

struct ScanLayout {
  // Throws kInvalidGraph when the attributes do not fit each other or the node's inputs.
  explicit ScanLayout(const Node& node);

  size_t states = 0, scanned = 0, stacked = 0;  // numbers of carried values, scan inputs, scan outputs
  std::vector<int64_t> input_axes, input_directions, output_axes, output_directions;
};

}  // namespace ortmodule
