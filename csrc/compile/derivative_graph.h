// The gradients of a graph as a graph of their own, which can be differentiated again: second derivatives.
//
// The same stages as compile(), up to the gradient. Then each operator through which a gradient could not flow back, or
// not through all of its outputs (a kernel of a gradient, a mean that backward reads), is replaced by its body: the
// result has the gradients alone as its outputs, and compiles like any captured model.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

struct DerivativeRequest {
  std::vector<std::string> xs;         // graph inputs whose gradients are wanted
  std::vector<std::string> ys;         // graph outputs that have a gradient, each a new input `<y>_grad`
  std::vector<std::string> trainable;  // every graph input whose gradient may be asked for, the xs included
};

struct DerivativeGraph {
  std::string model;  // the serialized ModelProto; its outputs: the gradients, in the order of `dxs`
  // Its inputs are the model's, then `<y>_grad` for the ys at these places: gradients reach no x from the others.
  std::vector<size_t> dys;
  std::vector<size_t> dxs;    // the places of the xs that have a gradient; the others' is identically zero
  std::vector<size_t> reads;  // the places of the model's inputs on which a gradient depends
};

// Throws kUnsupported naming an operator through which no second gradient can flow, and for a graph that draws random
// numbers; kInvalidArgument for an unknown name.
ORTMODULE_API DerivativeGraph derivative_graph(std::string_view model, const DerivativeRequest& request);

}  // namespace ortmodule
