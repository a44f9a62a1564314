// Convolutions with few output positions per channel, as matrix products.
//
// A direct convolution vectorises over blocks of channels and keeps a row of output positions in registers; where a
// plane has a handful of them (the last layers of a network on small pictures), its kernels starve and the weights'
// change of layout costs as much as the work. With the windows of all pictures laid out as rows, the same sums are one
// product with many rows. Which of both is faster is measured once per shape, as for matrix products.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>

#include "ops/conv/window.h"

namespace ortmodule {

// Whether the product is worth a look: float on the CPU, two spatial axes, one group, few output positions.
// `y`: sizes of the result.
bool has_small_planes(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a, c10::IntArrayRef y);

// y[N, O, H', W'] of x[N, C, H, W], w[O, C, h, w] and an optional bias[O].
at::Tensor product_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                               const ConvAttributes& a, c10::IntArrayRef y);
// dx, dw, db; undefined where not wanted.
using ConvGradients = std::array<at::Tensor, 3>;
ConvGradients product_convolution_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                            const ConvAttributes& a, const std::array<bool, 3>& wants);

// Runs the faster of both ways, measured at the first run of a shape; what is nearly equal goes by `direct`.
// `wants`: all false for the forward direction.
ConvGradients faster_convolution(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a,
                                 const std::array<bool, 3>& wants, const std::function<ConvGradients()>& direct,
                                 const std::function<ConvGradients()>& product);

}  // namespace ortmodule
