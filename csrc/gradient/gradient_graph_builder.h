// Reverse-mode differentiation of a graph, in place: appends the backward nodes that give d(x) from d(y).
//
// The builder walks the forward nodes in reverse topological order, asks each record's formula for the gradients of
// its inputs and accumulates where a value has several uses. It names no operator: which inputs are differentiable
// is the record's statement, and an operator declared not differentiable is where gradients stop.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortmodule {

struct GradientRequest {
  std::vector<NodeArg*> ys;  // graph outputs that receive a gradient
  std::vector<NodeArg*> xs;  // graph inputs whose gradient is wanted
};

struct GradientResult {
  std::vector<NodeArg*> dys;  // new graph inputs, one per y; null where no x can be reached from that y
  std::vector<NodeArg*> dxs;  // one per x; null where the gradient is identically zero
  // Nodes whose formula left the gradient of an output aside: right for running statistics, which autograd does not
  // follow, and wrong for a mean that a gradient reads (compile/derivative_graph.h).
  std::vector<Node*> unheard;
};

// The graph must be resolved. New nodes have Phase::kBackward and types; the list order stays topological.
// Adds nothing for an x that no y depends on, and no node that only such an x would need.
GradientResult build_gradient(Graph& graph, const GradientRequest& request);

// Throws kUnsupported when a graph output depends on one of `xs` through a sequence or an optional: these carry no
// gradient, and a result without history would be wrong in silence.
void refuse_gradients_through_containers(const Graph& graph, const std::vector<NodeArg*>& xs);

// Values that depend on one of `xs` through differentiable inputs, by NodeArg id.
std::vector<char> differentiable_values(const Graph& graph, const std::vector<NodeArg*>& xs);

}  // namespace ortmodule
