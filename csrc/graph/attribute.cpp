#include "graph/attribute.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>

#include "base/status.h"

namespace ortmodule {
namespace {

float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 0x1f;
  const float mantissa = static_cast<float>(h & 0x3ff);
  float v = 0;
  if (exponent == 0)
    v = std::ldexp(mantissa, -24);
  else if (exponent == 31)
    v = mantissa == 0 ? INFINITY : NAN;
  else
    v = std::ldexp(mantissa + 1024.0f, exponent - 25);
  return (h & 0x8000) ? -v : v;
}

template <typename T>
double real_number(std::complex<T> value) {
  if (value.imag() != 0) fail(ErrorCode::kUnsupported, "a complex constant has no numeric value here");
  return value.real();
}

uint16_t float_to_half(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);                    // [0.5, 1)
  auto mantissa = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11)));  // [1024, 2048]
  if (mantissa == 2048) {
    mantissa = 1024;
    ++exponent;
  }
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + (mantissa - 1024));
}

uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T, typename F>
void read_all(std::string_view bytes, F&& push) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T v;
    std::memcpy(&v, bytes.data() + i, sizeof(T));
    push(v);
  }
}

template <typename Out>
std::vector<Out> read_numbers(const TensorData& t) {
  std::vector<Out> out;
  const auto push = [&](auto v) { out.push_back(static_cast<Out>(v)); };
  const std::string_view b = *t.bytes;
  switch (t.dtype) {
    case DType::kFloat:
      read_all<float>(b, push);
      break;
    case DType::kDouble:
      read_all<double>(b, push);
      break;
    case DType::kInt64:
      read_all<int64_t>(b, push);
      break;
    case DType::kUInt64:
      read_all<uint64_t>(b, push);
      break;
    case DType::kInt32:
      read_all<int32_t>(b, push);
      break;
    case DType::kUInt32:
      read_all<uint32_t>(b, push);
      break;
    case DType::kInt16:
      read_all<int16_t>(b, push);
      break;
    case DType::kUInt16:
      read_all<uint16_t>(b, push);
      break;
    case DType::kInt8:
    case DType::kInt4:
    case DType::kInt2:
      read_all<int8_t>(b, push);
      break;
    case DType::kUInt8:
    case DType::kUInt4:
    case DType::kUInt2:
    case DType::kBool:
      read_all<uint8_t>(b, push);
      break;
    case DType::kFloat16:
      read_all<uint16_t>(b, [&](uint16_t v) { push(half_to_float(v)); });
      break;
    case DType::kBFloat16:
      read_all<uint16_t>(b, [&](uint16_t v) { push(std::bit_cast<float>(static_cast<uint32_t>(v) << 16)); });
      break;
    case DType::kComplex64:
      read_all<std::complex<float>>(b, [&](std::complex<float> v) { push(real_number(v)); });
      break;
    case DType::kComplex128:
      read_all<std::complex<double>>(b, [&](std::complex<double> v) { push(real_number(v)); });
      break;
    default:
      fail(ErrorCode::kUnsupported, "a constant of type ", dtype_name(t.dtype), " has no numeric value here");
  }
  return out;
}

template <typename T>
SharedBytes one(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

int64_t TensorData::elements() const {
  int64_t n = 1;
  for (int64_t d : dims)
    if (d == 0) return 0;  // the other dims may overflow then
  for (int64_t d : dims) n *= d;
  return n;
}

std::vector<int64_t> TensorData::to_ints() const { return read_numbers<int64_t>(*this); }
std::vector<double> TensorData::to_doubles() const { return read_numbers<double>(*this); }

TensorData TensorData::of_ints(const std::vector<int64_t>& values) {
  std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  return {DType::kInt64, {static_cast<int64_t>(values.size())}, std::move(bytes)};
}

TensorData TensorData::scalar_int(int64_t value) { return {DType::kInt64, {}, one(value)}; }

TensorData TensorData::scalar(DType dtype, double value) {
  TensorData t{dtype, {}, nullptr};
  switch (dtype) {
    case DType::kFloat:
      t.bytes = one(static_cast<float>(value));
      break;
    case DType::kDouble:
      t.bytes = one(value);
      break;
    case DType::kFloat16:
      t.bytes = one(float_to_half(value));
      break;
    case DType::kBFloat16:
      t.bytes = one(float_to_bfloat16(static_cast<float>(value)));
      break;
    case DType::kInt64:
      t.bytes = one(static_cast<int64_t>(value));
      break;
    case DType::kInt32:
      t.bytes = one(static_cast<int32_t>(value));
      break;
    case DType::kInt16:
      t.bytes = one(static_cast<int16_t>(value));
      break;
    case DType::kInt8:
    case DType::kInt4:
    case DType::kInt2:
      t.bytes = one(static_cast<int8_t>(value));
      break;
    case DType::kUInt64:
      t.bytes = one(static_cast<uint64_t>(value));
      break;
    case DType::kUInt32:
      t.bytes = one(static_cast<uint32_t>(value));
      break;
    case DType::kUInt16:
      t.bytes = one(static_cast<uint16_t>(value));
      break;
    case DType::kUInt8:
    case DType::kUInt4:
    case DType::kUInt2:
      t.bytes = one(static_cast<uint8_t>(value));
      break;
    case DType::kBool:
      t.bytes = one(static_cast<uint8_t>(value != 0));
      break;
    case DType::kComplex64:
      t.bytes = one(std::complex<float>(static_cast<float>(value)));
      break;
    case DType::kComplex128:
      t.bytes = one(std::complex<double>(value));
      break;
    default:
      fail(ErrorCode::kUnsupported, "no scalar constant of type ", dtype_name(dtype));
  }
  return t;
}

const char* attribute_kind(const AttributeValue& value) {
  constexpr const char* kNames[] = {"int", "float", "string", "ints", "floats", "strings", "tensor", "graph"};
  return kNames[value.index()];
}

}  // namespace ortmodule
