#include "kernels/conversion.h"

#include <c10/util/Half.h>

#include <bit>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu_simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace ortmodule {
namespace {

ORTMODULE_INLINE float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

ORTMODULE_INLINE uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

ORTMODULE_SIMD void load_bfloat16(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_bfloat16(from[i]);
}
ORTMODULE_SIMD void store_bfloat16(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bfloat16(from[i]);
}
ORTMODULE_SIMD void load_bool(const uint8_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] ? 1.0f : 0.0f;
}
ORTMODULE_SIMD void store_bool(const float* from, uint8_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0.0f;
}

ORTMODULE_INLINE float from_half(uint16_t bits) { return c10::detail::fp16_ieee_to_fp32_value(bits); }

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,f16c"))) int64_t load_half_eights(const uint16_t* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  return i;
}
__attribute__((target("avx2,f16c"))) int64_t store_half_eights(const float* from, uint16_t* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  return i;
}
bool has_eights() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
#else
int64_t load_half_eights(const uint16_t*, float*, int64_t) { return 0; }
int64_t store_half_eights(const float*, uint16_t*, int64_t) { return 0; }
bool has_eights() { return false; }
#endif

void load_half(const uint16_t* from, float* to, int64_t n) {
  int64_t i = has_eights() ? load_half_eights(from, to, n) : 0;
  for (; i < n; ++i) to[i] = from_half(from[i]);
}
void store_half(const float* from, uint16_t* to, int64_t n) {
  int64_t i = has_eights() ? store_half_eights(from, to, n) : 0;
  for (; i < n; ++i) to[i] = c10::detail::fp16_ieee_from_fp32_value(from[i]);
}

template <auto convert, typename T>
void load_any(const T* from, int64_t stride, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i * stride]);
}

}  // namespace

bool converts(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kBool;
}

void load_elements(at::ScalarType type, const void* from, int64_t stride, float* to, int64_t n) {
  const auto* floats = static_cast<const float*>(from);
  const auto* words = static_cast<const uint16_t*>(from);
  const auto* bytes = static_cast<const uint8_t*>(from);
  switch (type) {
    case at::kFloat:
      if (stride == 1) return static_cast<void>(std::memcpy(to, floats, n * sizeof(float)));
      return load_any<[](float x) { return x; }>(floats, stride, to, n);
    case at::kBFloat16:
      return stride == 1 ? load_bfloat16(words, to, n) : load_any<from_bfloat16>(words, stride, to, n);
    case at::kHalf:
      return stride == 1 ? load_half(words, to, n) : load_any<from_half>(words, stride, to, n);
    case at::kBool:
      return stride == 1 ? load_bool(bytes, to, n)
                         : load_any<[](uint8_t x) { return x ? 1.0f : 0.0f; }>(bytes, stride, to, n);
    default:
      fail(ErrorCode::kInternal, "no conversion of elements of type ", c10::toString(type));
  }
}

void store_elements(at::ScalarType type, const float* from, void* to, int64_t n) {
  switch (type) {
    case at::kFloat:
      if (to != from) std::memcpy(to, from, n * sizeof(float));
      return;
    case at::kBFloat16:
      return store_bfloat16(from, static_cast<uint16_t*>(to), n);
    case at::kHalf:
      return store_half(from, static_cast<uint16_t*>(to), n);
    case at::kBool:
      return store_bool(from, static_cast<uint8_t*>(to), n);
    default:
      fail(ErrorCode::kInternal, "no conversion of elements of type ", c10::toString(type));
  }
}

}  // namespace ortmodule
