// Turns a forward graph into one that any ONNX runtime can run: the step before a portable export.
#pragma once

#include <memory>

#include "graph/graph.h"

namespace ortmodule {

// A copy of `graph` in standard operators: operators of ai.ortmodule are replaced by their records' bodies, Sizes nodes
// by arithmetic on the shapes of graph inputs. Throws kUnsupported naming the first node that has no such form (ATen
// nodes, gradient operators, sizes of a symbol that no input's shape holds).
std::unique_ptr<Graph> lower_portable(const Graph& graph);

}  // namespace ortmodule
