// States of optimizers in 8 bits, blockwise: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022.
//
// A block of kStateBlock elements has one scale, its largest magnitude. What is left lies in [-1, 1] and gets the
// nearest of 256 numbers of the dynamic tree: seven decades from 1e-6 to 1, decade i with 2^i numbers (2^(i + 1) where
// there is no sign) in the middles of equal parts of (0.1, 1) * 10^(i - 6), and 0. Two things differ from the paper:
// the largest code stands for 1 itself in both signs, and a second moment above zero never becomes 0, by whose root a
// step would be divided.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "kernels/optimizer/update.h"

namespace ortmodule {

void decode_state(bool is_signed, const uint8_t* codes, const float* scales, float* values, int64_t n);
// A NaN or an infinity makes its block's scale that, and its block NaN when it is decoded.
void encode_state(bool is_signed, const float* values, uint8_t* codes, float* scales, int64_t n);

// Whole tensors: `values` is dense and of floats, codes are of its shape and order. Throws kInvalidArgument for others.
ORTMODULE_API std::pair<at::Tensor, at::Tensor> encoded_state(const at::Tensor& values, bool is_signed);
ORTMODULE_API at::Tensor decoded_state(const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

}  // namespace ortmodule
