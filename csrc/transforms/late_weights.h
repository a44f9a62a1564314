// The gradient of a layer's weight waits where its operand, which backward computes again, comes with the next
// gradient.
//
// LinearGrad makes dx and dw of dy, of the layer's input and of its weight. Where that input is an activation's result
// that backward computes again, the operand of the activation is read for it, and once more for the activation's own
// gradient, which dx goes into. Here dw becomes a LinearGrad of its own behind that gradient, and the second run of the
// activation stands in front of it: they are one program then (fuse.h), which reads the operand once.
//
// For devices whose kernels are as fast as memory. dy and the activation are held a little longer.
// Not here: what is computed again (recompute.h).
#pragma once

#include "graph/graph.h"

namespace ortmodule {

// Types must be inferred; new nodes have theirs. Values keep their names. Returns how many gradients wait.
size_t delay_weight_gradients(Graph& graph);

}  // namespace ortmodule
