// Nodes as their schemas have them, where the engine takes more: for files that other runtimes read.
#pragma once

#include <memory>

#include "graph/graph.h"

namespace ortmodule {

// A copy of `graph` in which com.microsoft's EmbedLayerNormalization reads ids of int64 through Cast nodes, because its
// schema has int32 alone, and has its second output, which the schema demands; null where no node differs. What runs
// here casts nothing: an id beyond int32 is no row of a table, and is told.
std::unique_ptr<Graph> with_schema_types(const Graph& graph);

}  // namespace ortmodule
