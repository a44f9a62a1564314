#include "base/dtype.h"

#include <array>

#include "base/container_type.h"

namespace ortmodule {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  size_t size;
};

constexpr std::array<Entry, 29> kEntries{{
    {DType::kUndefined, "undefined", 0},
    {DType::kFloat, "float", 4},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kUInt16, "uint16", 2},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kString, "string", 0},
    {DType::kBool, "bool", 1},
    {DType::kFloat16, "float16", 2},
    {DType::kDouble, "double", 8},
    {DType::kUInt32, "uint32", 4},
    {DType::kUInt64, "uint64", 8},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat8E4M3FN, "float8e4m3fn", 1},
    {DType::kFloat8E4M3FNUZ, "float8e4m3fnuz", 1},
    {DType::kFloat8E5M2, "float8e5m2", 1},
    {DType::kFloat8E5M2FNUZ, "float8e5m2fnuz", 1},
    {DType::kUInt4, "uint4", 1},
    {DType::kInt4, "int4", 1},
    {DType::kFloat4E2M1, "float4e2m1", 1},
    {DType::kFloat8E8M0, "float8e8m0", 1},
    {DType::kUInt2, "uint2", 1},
    {DType::kInt2, "int2", 1},
    {DType::kFloat6E2M3, "float6e2m3", 1},
    {DType::kFloat6E3M2, "float6e3m2", 1},
}};

const Entry& entry(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kEntries.size() ? kEntries[index] : kEntries[0];
}

}  // namespace

size_t dtype_size(DType dtype) { return entry(dtype).size; }

size_t dtype_bits(DType dtype) {
  switch (dtype) {
    case DType::kUInt4:
    case DType::kInt4:
    case DType::kFloat4E2M1:
      return 4;
    case DType::kUInt2:
    case DType::kInt2:
      return 2;
    case DType::kFloat6E2M3:
    case DType::kFloat6E3M2:
      return 6;
    default:
      return 8 * dtype_size(dtype);
  }
}

std::string_view dtype_name(DType dtype) { return is_container(dtype) ? container_name(dtype) : entry(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (const Entry& e : kEntries)
    if (e.name == name) return e.dtype;
  return name.find('_') == std::string_view::npos ? DType::kUndefined : container_from_name(name);
}

bool is_reduced_floating(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::kFloat:
    case DType::kDouble:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return true;
    default:
      return false;
  }
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt32:
    case DType::kUInt64:
    case DType::kUInt4:
    case DType::kInt4:
    case DType::kUInt2:
    case DType::kInt2:
      return true;
    default:
      return false;
  }
}

}  // namespace ortmodule
