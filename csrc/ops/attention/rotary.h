// RotaryEmbedding on tensors, for the standard's operator and com.microsoft's.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ortmodule {

struct Rotary {
  bool interleaved = false;
  int64_t dim = 0, heads = 0;  // zero: the whole head; from the caches
  std::string name;

  // x[batch, seq, heads * size] or [batch, heads, seq, size]; caches [batch, seq, dim / 2], or [positions, dim / 2]
  // with position ids [batch, seq] or [seq].
  at::Tensor operator()(const at::Tensor& x, at::Tensor cos, at::Tensor sin, const at::Tensor& positions) const;
};

}  // namespace ortmodule
