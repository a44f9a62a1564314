#include "kernels/element_types.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/aten_bridge.h"

namespace ortmodule {
namespace {

// A float below a byte: sign, exponent and mantissa, no infinity, no NaN.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  double largest() const { return value((1 << (exponent_bits + mantissa_bits)) - 1); }
  int size() const { return 1 << (1 + exponent_bits + mantissa_bits); }
  double value(int code) const {
    const int sign = code >> (exponent_bits + mantissa_bits);
    const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return sign ? -magnitude : magnitude;
  }
};

std::optional<SmallFloat> small_float(DType dtype) {
  if (dtype == DType::kFloat4E2M1) return SmallFloat{2, 1, 1};
  if (dtype == DType::kFloat6E2M3) return SmallFloat{2, 3, 1};
  if (dtype == DType::kFloat6E3M2) return SmallFloat{3, 2, 3};
  return std::nullopt;
}

bool is_small_integer(DType dtype) {
  return dtype == DType::kInt4 || dtype == DType::kUInt4 || dtype == DType::kInt2 || dtype == DType::kUInt2;
}

at::Tensor decode_small_float(const at::Tensor& codes, const SmallFloat& format) {
  at::Tensor table = at::empty({format.size()}, at::TensorOptions().dtype(at::kFloat));
  for (int code = 0; code < format.size(); ++code)
    table.data_ptr<float>()[code] = static_cast<float>(format.value(code));
  const at::Tensor index = at::bitwise_and(codes, format.size() - 1).to(at::kInt).reshape({-1});
  return at::index_select(table.to(codes.device()), 0, index).view(codes.sizes());
}

// Rounds to nearest, ties to even; what is too large becomes the largest number, NaN becomes zero.
at::Tensor encode_small_float(const at::Tensor& numbers, const SmallFloat& format) {
  const at::Tensor x = numbers.scalar_type() == at::kDouble || numbers.scalar_type() == at::kLong
                           ? numbers.to(at::kDouble)
                           : numbers.to(at::kFloat);
  const double largest = format.largest();
  const at::Tensor magnitude = at::nan_to_num(x, 0.0, largest, -largest).abs_().clamp_max_(largest);
  // magnitude = m 2^e with m in [1/2, 1): its leading bit is worth 2^(e - 1), subnormals share the lowest exponent.
  const at::Tensor exponent = std::get<1>(at::frexp(magnitude))
                                  .sub_(1)
                                  .clamp_min_(1 - format.bias)
                                  .masked_fill_(at::eq(magnitude, 0), 1 - format.bias);
  const at::Tensor steps = at::ldexp(magnitude, format.mantissa_bits - exponent).round_().to(at::kInt);
  // With n steps of 2^(e - mantissa bits) the code is (e + bias - 1) 2^(mantissa bits) + n, also where rounding
  // reached the next power of two and for subnormals.
  const at::Tensor code = ((exponent + (format.bias - 1)) * (1 << format.mantissa_bits)).add_(steps);
  const at::Tensor sign = at::signbit(x).to(at::kInt).mul_(format.size() / 2);
  return code.add_(sign).to(at::kByte);
}

// The power of two beside |x|, as its exponent plus 127.
at::Tensor encode_e8m0(const at::Tensor& numbers, const CastRules& rules) {
  const at::Tensor x = numbers.to(at::kDouble).abs().contiguous();
  const at::Tensor bits = x.view(at::kLong);
  const at::Tensor fraction = at::bitwise_and(bits, (int64_t{1} << 52) - 1);
  const at::Tensor below = bits.bitwise_right_shift(52).sub_(1023);  // floor(log2 x); -1023 for zero
  at::Tensor exponent = below;
  if (rules.round_mode == "up")
    exponent = exponent + fraction.ne(0);
  else if (rules.round_mode == "nearest")
    exponent = exponent + fraction.ge(int64_t{1} << 51);
  at::Tensor code = exponent + 127;
  const at::Tensor nan = x.ne(x);
  if (rules.saturate) {
    code = code.clamp(0, 254).masked_fill_(nan, 255);
  } else {
    code = code.masked_fill(at::gt(code, 254).logical_or_(below.lt(-127)).logical_or_(nan), 255);
  }
  return code.to(at::kByte).view(at::kFloat8_e8m0fnu);
}

// The largest finite number of a float8 type; beyond `overflow` rounding leaves the range.
struct Float8Limits {
  double largest, overflow;
  bool infinity;
};

std::optional<Float8Limits> float8_limits(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return Float8Limits{448, 464, false};
    case DType::kFloat8E4M3FNUZ:
      return Float8Limits{240, 248, false};
    case DType::kFloat8E5M2:
      return Float8Limits{57344, 61440, true};
    case DType::kFloat8E5M2FNUZ:
      return Float8Limits{57344, 61440, false};
    default:
      return std::nullopt;
  }
}

at::Tensor encode_float8(const at::Tensor& numbers, DType to, const Float8Limits& limits, bool saturate) {
  const at::Tensor x = numbers.scalar_type() == at::kDouble ? numbers : numbers.to(at::kFloat);
  if (saturate) return at::clamp(x, -limits.largest, limits.largest).to(to_scalar_type(to));
  // Versions of torch differ in what becomes of numbers out of range. A tie at the end rounds to an even mantissa:
  // e4m3fn's largest number has one, the others' has not.
  const at::Tensor size = at::abs(x);
  const at::Tensor out = limits.overflow == 464 ? size.gt(limits.overflow) : size.ge(limits.overflow);
  const double beyond = limits.infinity ? std::numeric_limits<double>::infinity() : std::nan("");
  const at::Tensor special = at::scalar_tensor(beyond, x.options()).copysign(x);
  return at::where(out, special, x).to(to_scalar_type(to));
}

}  // namespace

at::Tensor to_codes(const at::Tensor& elements, DType dtype) {
  return at::bitwise_and(elements.view(at::kByte), (1 << dtype_bits(dtype)) - 1);
}

at::Tensor from_codes(const at::Tensor& codes, DType dtype) {
  if (dtype != DType::kInt4 && dtype != DType::kInt2) return codes;
  const int64_t sign = int64_t{1} << (dtype_bits(dtype) - 1);
  return codes.bitwise_xor(sign).to(at::kChar).sub_(sign);
}

std::optional<std::pair<int64_t, int64_t>> small_integer_range(DType dtype) {
  const auto bits = static_cast<int64_t>(dtype_bits(dtype));
  switch (dtype) {
    case DType::kInt2:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kInt16:
      return std::pair{-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1};
    case DType::kUInt2:
    case DType::kUInt4:
    case DType::kUInt8:
    case DType::kUInt16:
      return std::pair{int64_t{0}, (int64_t{1} << bits) - 1};
    default:
      return std::nullopt;
  }
}

at::Tensor decode_elements(const at::Tensor& elements, DType dtype) {
  if (const auto format = small_float(dtype)) return decode_small_float(elements, *format);
  if (float8_limits(dtype) || dtype == DType::kFloat8E8M0) return elements.to(at::kFloat);
  return elements;
}

at::Tensor encode_elements(const at::Tensor& numbers, DType to, const CastRules& rules) {
  if (const auto format = small_float(to)) return encode_small_float(numbers, *format);
  if (const auto limits = float8_limits(to)) return encode_float8(numbers, to, *limits, rules.saturate);
  if (to == DType::kFloat8E8M0) return encode_e8m0(numbers, rules);
  if (is_small_integer(to)) {
    // Through a type that holds what float16 can hold: the number is truncated first, then cut to its low bits.
    const at::Tensor whole = numbers.is_floating_point() ? numbers.to(at::kLong) : numbers;
    return from_codes(to_codes(whole.to(at::kByte), to), to);
  }
  return numbers.to(to_scalar_type(to));
}

}  // namespace ortmodule
