// Maxima of windows of floats whose channels lie side by side, without positions, as inference wants them on the CPU.
//
// ATen finds the position of each maximum too, which takes most of its time (0.9 ms for 64 channels of 112 x 112 and
// windows of 3 x 3, here 0.1).
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/pool/window.h"

namespace ortmodule {

// What at::max_pool2d gives of x [batch, channels, height, width], to the bit; undefined where that should do it: other
// types or layouts, windows that may lie in a pad alone, rounding up. `padding`: of both ends, per axis.
at::Tensor max_of_channels(const at::Tensor& x, const PoolAttributes& a, c10::IntArrayRef padding);

}  // namespace ortmodule
