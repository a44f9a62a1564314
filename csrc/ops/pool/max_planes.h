// Maxima of windows of planes of floats, bfloat16 or half on the CPU, a row of windows at a time.
//
// ATen looks at one window after the other, element by element; here each element of a window is looked at for all
// windows of a row together, which vectorises. Values, positions, ties and NaN are ATen's to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "ops/pool/window.h"

namespace ortmodule {

// y and the positions within each plane (int64), as at::max_pool2d_with_indices gives them; both undefined where that
// should do it: other types or layouts, windows that begin in a pad alone, rounding up.
// `padding`: of both ends, per axis.
std::pair<at::Tensor, at::Tensor> max_of_planes(const at::Tensor& x, const PoolAttributes& a, c10::IntArrayRef padding);

}  // namespace ortmodule
