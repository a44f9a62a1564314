// Index tensors as ATen's kernels want them: 64 bits, counted from the front.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/where.h>

#include "base/typed_error.h"

namespace ortmodule {

inline at::Tensor as_int64(const at::Tensor& indices) {
  return indices.scalar_type() == at::kLong ? indices : indices.to(at::kLong);
}

// Whether there is a number below zero; on the CPU.
inline bool has_negative(const at::Tensor& indices) {
  const at::Tensor flat = indices.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  const int64_t count = flat.numel();
  int64_t signs = 0;
  for (int64_t i = 0; i < count; ++i) signs |= data[i];
  return signs < 0;
}

// Positions along an axis of size n made non-negative. On the CPU one beyond either end is refused, elsewhere by the
// kernel that reads it: one pass looks for what is not in [0, n), which is rarely there.
inline at::Tensor checked_positions(const at::Tensor& given, int64_t n) {
  at::Tensor indices = as_int64(given);
  if (!indices.device().is_cpu()) return at::where(at::lt(indices, 0), indices.add(n), indices);
  const at::Tensor flat = indices.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  const int64_t count = flat.numel();
  bool inside = true;
  for (int64_t i = 0; i < count; ++i) inside &= static_cast<uint64_t>(data[i]) < static_cast<uint64_t>(n);
  if (inside) return indices;
  for (int64_t i = 0; i < count; ++i)
    ORTMODULE_CHECK_INDEX(data[i] >= -n && data[i] < n, "index out of range: position ", data[i],
                          " is outside of an axis of size ", n);
  return at::where(at::lt(indices, 0), indices.add(n), indices);
}

// Negative positions made non-negative for an axis of size n. On the CPU the numbers are looked at first, because
// nearly always there is nothing to do; on other devices a look would wait for the device.
inline at::Tensor wrap_negative(const at::Tensor& given, int64_t n) {
  at::Tensor indices = as_int64(given);
  if (indices.device().is_cpu() && !has_negative(indices)) return indices;
  return at::where(at::lt(indices, 0), indices.add(n), indices);
}

}  // namespace ortmodule
