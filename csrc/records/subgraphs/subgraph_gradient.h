// The gradient of a subgraph, for the gradients of If, Loop and Scan.
//
// A gradient formula cannot call the gradient builder (gradient/ is behind ops/), so the builder registers itself.
//
// Note [Gradients of subgraphs]
// The gradient of a body is a graph that takes the body's inputs and the gradients of its outputs. It computes the
// body's intermediate values again instead of keeping those of every iteration: what backward keeps is what goes into
// the node, so that memory does not grow with the inside of a loop. A body that draws random numbers would draw others
// the second time, and is refused.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

struct BodyGradient {
  std::shared_ptr<Graph> graph;
  // The graph's input that takes the gradient of each y, "" where nothing depends on that y.
  std::vector<std::string> dy_names;
};

// `ys`: outputs of the body, by index; `xs`: inputs by name and type, one that the body lacks has a gradient of zeros.
// The graph's outputs are the gradients of `xs`. `tag` keeps the names of two branches apart. `owner` is named in
// errors; throws kUnsupported for random operators.
BodyGradient differentiate_body(const Graph& body, const std::vector<size_t>& ys,
                                const std::vector<std::pair<std::string, TypeInfo>>& xs, const std::string& tag,
                                const Node& owner);

struct BodyGradientValues {
  std::vector<NodeArg*> dys, dxs;  // null where there is none
};
using BodyGradientBuilder = BodyGradientValues (*)(Graph& graph, const std::vector<NodeArg*>& ys,
                                                   const std::vector<NodeArg*>& xs);
void set_body_gradient_builder(BodyGradientBuilder builder);

}  // namespace ortmodule
