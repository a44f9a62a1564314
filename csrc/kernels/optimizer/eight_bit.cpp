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

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

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

// Codes of `x` times `inverse`, magnitudes or not, from element `i` on, and what codes stand for.
void encode_rest(const Tree& t, bool is_signed, const float* x, float inverse, uint8_t* codes, int64_t i, int64_t n) {
  for (; i < n; ++i) {
    const float size = (is_signed ? std::fabs(x[i]) : x[i]) * inverse;
    const int32_t key = static_cast<int32_t>(std::bit_cast<uint32_t>(size) >> 16) - kFirstKey;
    int32_t code = t.code_of_key[std::clamp(key, 0, kKeys - 1)];
    code += size > t.boundary[code] ? 1 : 0;
    if (is_signed && std::signbit(x[i])) code |= 0x80;
    if (!is_signed && x[i] > 0 && code == 0) code = 1;
    codes[i] = static_cast<uint8_t>(code);
  }
}

void decode_rest(const Tree& t, bool is_signed, const uint8_t* codes, float scale, float* x, int64_t i, int64_t n) {
  for (; i < n; ++i) {
    const float value = t.magnitude[is_signed ? codes[i] & 0x7f : codes[i]] * scale;
    x[i] = is_signed && (codes[i] & 0x80) ? -value : value;
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
// Eight at a time, which compilers do not make of loops over tables. How many were done is returned.
#define ORTMODULE_AVX2_TABLES __attribute__((target("avx2")))

ORTMODULE_AVX2_TABLES int64_t encode_eights(const Tree& t, bool is_signed, const float* x, float inverse,
                                            uint8_t* codes, int64_t n) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0F), factor = _mm256_set1_ps(inverse);
  const __m256i one = _mm256_set1_epi32(1), zero = _mm256_setzero_si256();
  const __m256i first = _mm256_set1_epi32(kFirstKey), last = _mm256_set1_epi32(kKeys - 1);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_loadu_ps(x + i);
    const __m256 size = _mm256_mul_ps(is_signed ? _mm256_andnot_ps(sign_bit, value) : value, factor);
    __m256i key = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(size), 16), first);
    key = _mm256_min_epi32(_mm256_max_epi32(key, zero), last);
    __m256i code = _mm256_i32gather_epi32(t.code_of_key, key, 4);
    const __m256 boundary = _mm256_i32gather_ps(t.boundary, code, 4);
    // A comparison that holds is -1.
    code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(size, boundary, _CMP_GT_OQ)));
    if (is_signed) {
      const __m256i sign = _mm256_srli_epi32(_mm256_castps_si256(_mm256_and_ps(value, sign_bit)), 24);
      code = _mm256_or_si256(code, sign);
    } else {
      const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_GT_OQ));
      code = _mm256_max_epi32(code, _mm256_and_si256(above, one));
    }
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packus_epi16(words, words));
  }
  return i;
}

ORTMODULE_AVX2_TABLES int64_t decode_eights(const Tree& t, bool is_signed, const uint8_t* codes, float scale, float* x,
                                            int64_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256i size = _mm256_set1_epi32(is_signed ? 0x7f : 0xff), sign = _mm256_set1_epi32(is_signed ? 0x80 : 0);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256 value = _mm256_mul_ps(_mm256_i32gather_ps(t.magnitude, _mm256_and_si256(code, size), 4), factor);
    const __m256i signs = _mm256_slli_epi32(_mm256_and_si256(code, sign), 24);
    _mm256_storeu_ps(x + i, _mm256_xor_ps(value, _mm256_castsi256_ps(signs)));
  }
  return i;
}
bool has_eights() { return __builtin_cpu_supports("avx2"); }
#else
int64_t encode_eights(const Tree&, bool, const float*, float, uint8_t*, int64_t) { return 0; }
int64_t decode_eights(const Tree&, bool, const uint8_t*, float, float*, int64_t) { return 0; }
bool has_eights() { return false; }
#endif

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
  static const bool eights = has_eights();
  for (int64_t i = 0; i < n; i += kStateBlock) {
    const int64_t count = std::min(kStateBlock, n - i);
    const float scale = scales[i / kStateBlock];
    const int64_t done = eights ? decode_eights(t, is_signed, codes + i, scale, values + i, count) : 0;
    decode_rest(t, is_signed, codes + i, scale, values + i, done, count);
  }
}

void encode_state(bool is_signed, const float* values, uint8_t* codes, float* scales, int64_t n) {
  const Tree& t = tree(is_signed);
  static const bool eights = has_eights();
  for (int64_t i = 0; i < n; i += kStateBlock) {
    const int64_t count = std::min(kStateBlock, n - i);
    const float scale = largest(values + i, count), inverse = 1 / scale;
    scales[i / kStateBlock] = scale;
    if (!(scale > 0 && std::isfinite(scale) && std::isfinite(inverse))) {
      std::fill_n(codes + i, count, uint8_t{0});
      continue;
    }
    const int64_t done = eights ? encode_eights(t, is_signed, values + i, inverse, codes + i, count) : 0;
    encode_rest(t, is_signed, values + i, inverse, codes + i, done, count);
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
