// Vector code in hand-written CPU kernels.
//
// The extension is built for the oldest processor of its architecture. A function marked ORTMODULE_SIMD is compiled
// once per instruction-set level and chosen when the library loads, so plain loops in it are vectorised for the
// machine at hand. Helpers it calls must be ORTMODULE_INLINE, or they would stay at the oldest level. A reduction and a
// loop of few iterations want "#pragma omp simd", which allows the reordering and keeps the loop from being unrolled.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORTMODULE_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define ORTMODULE_SIMD
#endif
#define ORTMODULE_INLINE inline __attribute__((always_inline))

namespace ortmodule {

// e^x for x <= 88 with a relative error below 2e-7 (two units in the last place); 0 below -87.3. Cephes' reduction to
// [-ln2/2, ln2/2] and its degree-5 polynomial. NaN stays NaN. There is no branch and no ?: in it, which compilers turn
// into branches, so that loops around it vectorise: a mask clears what the range check refuses.
ORTMODULE_INLINE float simd_exp(float x) {
  // 1.5 * 2^23 pushes the fraction out: what stays in the low bits is the nearest integer.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  const float value = p * std::bit_cast<float>(power);
  const uint32_t in_range = -static_cast<uint32_t>(!(x < -87.3f));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & in_range);
}

// 2^x for x <= 127 with a relative error below 1e-7; 0 below -100. NaN stays NaN. Two thirds of simd_exp's work:
// nothing is lost when the integer part comes off, and the polynomial is as shallow as it can be. Smaller numbers would
// vanish in any sum with those they are for (probabilities), and their products are denormal, which is slow on Intel.
ORTMODULE_INLINE float simd_exp2(float x) {
  const float shifted = x + 12582912.0f;
  const float r = x - (shifted - 12582912.0f);
  const float square = r * r;
  const float low = 2.402264774e-01f * r + 6.931471825e-01f;
  const float middle = 9.618436918e-03f * r + 5.550332367e-02f;
  const float high = 1.535336196e-04f * r + 1.339887502e-03f;
  const float p = (high * square + middle) * square + low;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  const float value = (p * r + 1.0f) * std::bit_cast<float>(power);
  const uint32_t in_range = -static_cast<uint32_t>(!(x < -100.0f));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & in_range);
}

}  // namespace ortmodule
