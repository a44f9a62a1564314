// Index tensors as ATen's kernels want them: 64 bits, counted from the front.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/where.h>

namespace ortmodule {

inline at::Tensor as_int64(const at::Tensor& indices) {
  return indices.scalar_type() == at::kLong ? indices : indices.to(at::kLong);
}

// Negative positions made non-negative for an axis of size n. On the CPU the numbers are looked at first, because
// nearly always there is nothing to do; on other devices a look would wait for the device.
inline at::Tensor wrap_negative(const at::Tensor& given, int64_t n) {
  at::Tensor indices = as_int64(given);
  if (indices.device().is_cpu()) {
    const at::Tensor flat = indices.contiguous();
    const int64_t* data = flat.const_data_ptr<int64_t>();
    const int64_t count = flat.numel();
    int64_t signs = 0;
    for (int64_t i = 0; i < count; ++i) signs |= data[i];
    if (signs >= 0) return indices;
  }
  return at::where(at::lt(indices, 0), indices.add(n), indices);
}

}  // namespace ortmodule
