// Convolutions with few output positions per channel, as matrix products.
//
// A direct convolution vectorises over blocks of channels and keeps a row of output positions in registers; where a
// plane has a handful of them (the last layers of a network on small pictures), its kernels starve and the weights'
// change of layout costs as much as the work. With the windows of all pictures laid out as rows, the same sums are one
// product with many rows. Which of both is taken hangs on the sizes alone: two runs give the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "ops/conv/window.h"

namespace ortmodule {

// Whether the product is the faster way: float on the CPU, two spatial axes, one group, few output positions, large
// filters. `y`: sizes of the result. `forward`: the result is wanted, not the gradients.
bool is_better_product(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a, c10::IntArrayRef y,
                       bool forward);

// y[N, O, H', W'] of x[N, C, H, W], w[O, C, h, w] and an optional bias[O].
at::Tensor product_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                               const ConvAttributes& a, c10::IntArrayRef y);
// dx, dw, db; undefined where not wanted.
using ConvGradients = std::array<at::Tensor, 3>;
ConvGradients product_convolution_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                            const ConvAttributes& a, const std::array<bool, 3>& wants);

}  // namespace ortmodule
