// The graph as text, one line per node: what tests write, dumps show and errors quote.
//
//   graph main(x: float[batch, 4], w: float[4, 8]) -> (y)
//     opset "" 23
//     const %axes: int64[1] = [1]
//     %h: float[batch, 8] = MatMul(%x, %w)
//     %y, _, %z = com.microsoft::Some(%h, _, %axes) {alpha=1.5, perm=[1, 0], mode="x"} @{name="n", phase="backward"}
//
// Types of node outputs may be left away; `_` is an absent input or output; a value may be used before its line. The
// name and its colon, '-> (y)', {attributes} and @{node name, phase and metadata} are optional where they say nothing.
// Lists that are empty say their kind: floats[]. A subgraph is an attribute `body=graph b(...) -> (...) { lines }`.
// Functions follow the graph: `function "domain" "name" = graph name(a) -> (b) { lines }`, without formal attributes.
// '#' starts a comment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace ortmodule {

struct TextOptions {
  // Larger tensors are cut ("[1, 2, ...]"): text to read, not to parse.
  size_t max_elements = SIZE_MAX;
};

std::string to_text(const Graph& graph, const TextOptions& options = {});
std::string to_text(const Node& node, const TextOptions& options = {});

// Throws Error(kParse) with line and column; what a Graph refuses (a name given twice) keeps its own code.
std::unique_ptr<Graph> parse_text(std::string_view text);

}  // namespace ortmodule
