#include "kernels/optimizer/eight_bit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/status.h"
#include "kernels/cpu_simd.h"

namespace ortmodule {
namespace {

// Magnitudes below 2^-24 are zero; above, the upper half of a float's bits tells the code but for one comparison: no
// such range of numbers (a 128th of a power of two) has two boundaries in it.
constexpr int32_t kFirstKey = 0x33800000 >> 16, kLastKey = 0x3f800000 >> 16, kKeys = kLastKey - kFirstKey + 1;
constexpr int kDecades = 7;

struct Tree {
  int32_t codes = 0;          // how many magnitudes
  float magnitude[256] = {};  // ascending, from 0 to 1
  float boundary[256] = {};   // between a code and the next
  int32_t code_of_key[kKeys] = {};

  explicit Tree(bool is_signed) {
    std::vector<double> all{0.0};
    for (int decade = 0; decade < kDecades; ++decade) {
      const int parts = 1 << (is_signed ? decade : decade + 1);
      for (int part = 0; part < parts; ++part)
        all.push_back((0.1 + 0.9 * (part + 0.5) / parts) * std::pow(10.0, decade + 1 - kDecades));
    }
    if (is_signed)
      all.back() = 1;
    else
      all.push_back(1);
    codes = static_cast<int32_t>(all.size());
    for (int32_t i = 0; i < codes; ++i) {
      magnitude[i] = static_cast<float>(all[i]);
      boundary[i] = i + 1 < codes ? static_cast<float>((all[i] + all[i + 1]) / 2) : std::numeric_limits<float>::max();
    }
    for (int32_t key = 0, code = 0; key < kKeys; ++key) {
      const float least = std::bit_cast<float>(static_cast<uint32_t>(key + kFirstKey) << 16);
      while (least > boundary[code]) ++code;
      code_of_key[key] = code;
    }
  }
};

const Tree& tree(bool is_signed) {
  static const Tree with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

ORTMODULE_INLINE int32_t code_of(const Tree& t, float x) {
  const int32_t key = static_cast<int32_t>(std::bit_cast<uint32_t>(x) >> 16) - kFirstKey;
  const int32_t code = t.code_of_key[std::min(std::max(key, 0), kKeys - 1)];
  return code + (x > t.boundary[code] ? 1 : 0);
}

ORTMODULE_SIMD void encode_signed(const Tree& t, const float* x, float inverse, uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t code = code_of(t, std::fabs(x[i]) * inverse);
    codes[i] = static_cast<uint8_t>(code | (x[i] < 0 ? 0x80 : 0));
  }
}
ORTMODULE_SIMD void encode_unsigned(const Tree& t, const float* x, float inverse, uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t code = code_of(t, x[i] * inverse);
    codes[i] = static_cast<uint8_t>(std::max(code, x[i] > 0 ? 1 : 0));
  }
}
ORTMODULE_SIMD void decode_signed(const Tree& t, const uint8_t* codes, float scale, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = t.magnitude[codes[i] & 0x7f] * scale;
    x[i] = codes[i] & 0x80 ? -value : value;
  }
}
ORTMODULE_SIMD void decode_unsigned(const Tree& t, const uint8_t* codes, float scale, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = t.magnitude[codes[i]] * scale;
}

// Not a number where one is none.
ORTMODULE_SIMD float largest(const float* x, int64_t n) {
  float most = 0, broken = 0;
#pragma omp simd reduction(max : most) reduction(+ : broken)
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]);
    most = size > most ? size : most;
    broken += x[i] * 0.0F;
  }
  return most + broken;
}

}  // namespace

void decode_state(bool is_signed, const uint8_t* codes, const float* scales, float* values, int64_t n) {
  const Tree& t = tree(is_signed);
  for (int64_t i = 0; i < n; i += kStateBlock)
    (is_signed ? decode_signed : decode_unsigned)(t, codes + i, scales[i / kStateBlock], values + i,
                                                  std::min(kStateBlock, n - i));
}

void encode_state(bool is_signed, const float* values, uint8_t* codes, float* scales, int64_t n) {
  const Tree& t = tree(is_signed);
  for (int64_t i = 0; i < n; i += kStateBlock) {
    const int64_t count = std::min(kStateBlock, n - i);
    const float scale = largest(values + i, count);
    scales[i / kStateBlock] = scale;
    const bool usable = scale > 0 && std::isfinite(scale) && std::isfinite(1 / scale);
    if (usable)
      (is_signed ? encode_signed : encode_unsigned)(t, values + i, 1 / scale, codes + i, count);
    else
      std::fill_n(codes + i, count, uint8_t{0});
  }
}

namespace {

int64_t blocks_of(const at::Tensor& t) { return (t.numel() + kStateBlock - 1) / kStateBlock; }

void check_state(const at::Tensor& t, at::ScalarType type) {
  ORTMODULE_CHECK_ARG(t.is_cpu() && t.scalar_type() == type && t.is_non_overlapping_and_dense(),
                      "a state of an optimizer should be a dense tensor of ", type, " on the CPU, got ",
                      t.scalar_type(), " on ", t.device());
}

}  // namespace

std::pair<at::Tensor, at::Tensor> encoded_state(const at::Tensor& values, bool is_signed) {
  check_state(values, at::kFloat);
  at::Tensor codes = at::empty_like(values, at::kByte), scales = at::empty({blocks_of(values)}, at::kFloat);
  encode_state(is_signed, values.const_data_ptr<float>(), codes.mutable_data_ptr<uint8_t>(),
               scales.mutable_data_ptr<float>(), values.numel());
  return {codes, scales};
}

at::Tensor decoded_state(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  check_state(codes, at::kByte);
  check_state(scales, at::kFloat);
  ORTMODULE_CHECK_ARG(scales.is_contiguous() && scales.numel() == blocks_of(codes), "a state of ", codes.numel(),
                      " elements has ", blocks_of(codes), " scales, got ", scales.numel());
  at::Tensor values = at::empty_like(codes, at::kFloat);
  decode_state(is_signed, codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
               values.mutable_data_ptr<float>(), codes.numel());
  return values;
}

}  // namespace ortmodule
