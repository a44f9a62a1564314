// Replaces calls of model-local functions by their bodies, before operators are looked up.
#pragma once

#include <cstddef>

#include "base/limits.h"
#include "graph/graph.h"

namespace ortmodule {

// Returns the number of calls that were replaced, those inside subgraphs and inside other functions included; the
// graph has no functions afterwards. A call of an operator that the registry knows stays: its kernel is better than its
// body. Throws kInvalidGraph for a function that calls itself, for more arguments than it takes, for an attribute
// without a value; LimitError for more nodes or deeper calls than `limits` allow.
size_t inline_functions(Graph& graph, const Limits& limits = {});

}  // namespace ortmodule
