// The last step of quantized products (QLinearMatMul, QLinearConv): from an exact sum to the output's type.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/element_types.h"

namespace ortmodule {

// `sum` is double and exact; the result is saturate(round(sum * factor) + zero), in the elements of `to`. Consumes
// `sum`.
inline at::Tensor requantized(at::Tensor sum, const at::Tensor& factor, const at::Tensor& zero, DType to) {
  const auto range = small_integer_range(to);
  sum.mul_(factor);
  if (range) sum.round_();
  sum.add_(zero);
  if (range) sum.clamp_(range->first, range->second);
  return encode_elements(sum, to);
}

}  // namespace ortmodule
