// Conversions between ONNX's element types, for kernels: what torch's own conversion does not know (types below a byte,
// float8e8m0) or does differently (saturation). Tensors hold elements as base/dtype.h says; the DType comes from the
// graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>

#include "base/dtype.h"

namespace ortmodule {

struct CastRules {
  bool saturate = true;           // float8 only: the largest number instead of infinity or NaN
  std::string round_mode = "up";  // float8e8m0 only: "up", "down" or "nearest"
  bool operator==(const CastRules&) const = default;
};

// Numbers in a type that torch computes in: float32 for the floats of a byte and less, the tensor itself otherwise.
at::Tensor decode_elements(const at::Tensor& elements, DType dtype);
// The inverse: numbers of any of torch's types as elements of `to`. Floats become integers by truncation; integers that
// do not fit lose their high bits.
at::Tensor encode_elements(const at::Tensor& numbers, DType to, const CastRules& rules = {});
// The elements' bits in an unsigned byte each, for a type below a byte, and back.
at::Tensor to_codes(const at::Tensor& elements, DType dtype);
at::Tensor from_codes(const at::Tensor& codes, DType dtype);
// Smallest and largest number of an integer type of at most 16 bits; nothing for other types.
std::optional<std::pair<int64_t, int64_t>> small_integer_range(DType dtype);

}  // namespace ortmodule
