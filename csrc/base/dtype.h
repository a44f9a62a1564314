// Element types. The values are ONNX TensorProto.DataType's, so that no table is needed at that border.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

enum class DType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUInt4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,
  kUInt2 = 25,
  kInt2 = 26,
  kFloat6E2M3 = 27,
  kFloat6E3M2 = 28,
};

// Bytes of one element in memory; 0 for undefined and string. The types below a byte take a byte each: integers as
// int8 or uint8 numbers, floats as their codes. Files hold them packed (dtype_bits, onnx/packed.h).
size_t dtype_size(DType dtype);
// Bits of one element, as files hold it; 0 for undefined and string.
size_t dtype_bits(DType dtype);
// The name in text form: "float", "bfloat16", "int64", ...; "undefined" for a value outside the enum.
std::string_view dtype_name(DType dtype);
// The inverse of dtype_name; kUndefined when there is no such name.
DType dtype_from_name(std::string_view name);
// float, double, float16, bfloat16 and float8: what a gradient can have (complex included). Not float8e8m0, which has
// no zero and no sign, and not the floats below a byte.
bool is_floating(DType dtype);
bool is_integer(DType dtype);
// float16, bfloat16: arithmetic happens in float and is rounded once.
bool is_reduced_floating(DType dtype);

}  // namespace ortmodule
