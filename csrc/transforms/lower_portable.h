// Turns a graph, also one with its gradient, into one that any ONNX runtime can run: the step before a portable export.
#pragma once

#include <memory>

#include "graph/graph.h"

namespace ortmodule {

// A copy of `graph` in standard operators: operators of ai.ortmodule are replaced by their records' bodies, Sizes nodes
// by arithmetic on the shapes of graph inputs. A standard operator stays, unless backward reads an output of it that
// the standard lacks. Throws kUnsupported naming a node that has no such form (ATen nodes, operators without a body,
// sizes of a symbol that no input's shape holds).
std::unique_ptr<Graph> lower_portable(const Graph& graph);

}  // namespace ortmodule
