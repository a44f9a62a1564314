// Pictures whose channels lie side by side: how a GPU's library multiplies them.
//
// cuDNN's kernels for tensor cores take NHWC; of NCHW operands it makes copies, and of the result another. ATen hands
// its operands on as they lie, and every kernel behind keeps that order (batch norm, pools, programs: FusedBinding), so
// that a net's activations are turned once, at its first convolution. Sizes stay [N, C, H, W]: only strides differ.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// Whether x [N, C, H, W] lies on a device whose library computes with channels last.
bool takes_channels_last(const at::Tensor& x);

// The same elements with channels last, also where sizes of one leave open how they lie.
at::Tensor channels_last(const at::Tensor& t);

// The gradient of `w` as w lies, where that is row by row.
at::Tensor laid_out_like(const at::Tensor& w, const at::Tensor& gradient);

}  // namespace ortmodule
