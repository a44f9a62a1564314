// The mean over dilated windows, which ATen's pooling does not have: a convolution with ones, over the count.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/pool/window.h"

namespace ortmodule {

// x[N, C, d...] with attributes whose auto_pad is resolved.
at::Tensor dilated_mean(const at::Tensor& x, const PoolAttributes& a, bool include_pad);
at::Tensor dilated_mean_grad(const at::Tensor& dy, c10::IntArrayRef x_sizes, const PoolAttributes& a, bool include_pad);

}  // namespace ortmodule
