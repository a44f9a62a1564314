// Where a node's inputs have the batch and the sequence axis, when they are known for its output: for the nodes between
// [batch, length, ...] and attention's [batch, heads, length, size], which do not have their rows in front.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

struct RowAxes {
  size_t batch, length;
  bool operator==(const RowAxes&) const = default;
};

// Per input: the axes, or nothing for an input that does not have both. Empty when the node may mix positions, or is
// not known here.
std::vector<std::optional<RowAxes>> input_axes(const Node& node, RowAxes output);

}  // namespace ortmodule
