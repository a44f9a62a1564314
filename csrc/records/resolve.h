// Graph::resolve in DESIGN's words: finds each node's record, orders the nodes, re-infers types and shapes, verifies.
//
// It is here and not in graph/ because it asks the registry. After it: the node list is in topological order, every
// node has a record, every value has the type its operator gives it.
#pragma once

#include "graph/graph.h"

namespace ortmodule {

struct ResolveOptions {
  bool infer = true;
};

// Throws kInvalidGraph (cycle, missing input, wrong type, duplicate) or kUnsupported (unknown operator), always
// naming the node. Near linear in nodes.
ORTMODULE_API void resolve(Graph& graph, const ResolveOptions& options = {});

// Record and types of one new node; what builders call after add_node.
ORTMODULE_API void infer_node(Node& node);

}  // namespace ortmodule
