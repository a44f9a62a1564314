// Copies a graph's nodes into another graph, where a call of a function or a node with a subgraph stood.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

using ValueMap = std::map<const NodeArg*, NodeArg*>;

// Copies the nodes and initializers of `body` in front of `site`, with fresh names. `values` says what the body's
// inputs are in the site's graph (null: absent) and gets every other value of the body on return. Phase and metadata
// are the site's. Returns (the body's node, its copy) in the body's order; types are left to the caller.
std::vector<std::pair<Node*, Node*>> copy_nodes(const Graph& body, Node& site, ValueMap& values);

}  // namespace ortmodule
