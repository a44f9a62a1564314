// ai.ortmodule::Sizes in standard operators.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// Replaces a Sizes node by Shape, Add, Mul, Div, Sub, Mod, Max, Min and Concat nodes on graph inputs. False when a
// symbol is neither a lone dim of an input nor bound by the node's own inputs.
bool lower_sizes(Graph& graph, Node& node);

}  // namespace ortmodule
