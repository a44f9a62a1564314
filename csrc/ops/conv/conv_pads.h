// What the convolution kernels of this folder share: the pads of a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/conv/window.h"

namespace ortmodule {

// The attributes with auto_pad resolved against the sizes.
ConvAttributes conv_attributes(const ConvAttributes& declared, const at::Tensor& x, const at::Tensor& w);
// constant_pad_nd's list: the last dimension first, (begin, end) each.
std::vector<int64_t> aten_pads(const ConvAttributes& a, bool negative);

}  // namespace ortmodule
