// Vector code in hand-written CPU kernels.
//
// The extension is built for the oldest processor of its architecture. A function marked ORTMODULE_SIMD is compiled
// once per instruction-set level and chosen when the library loads, so plain loops in it are vectorised for the
// machine at hand. Helpers it calls must be ORTMODULE_INLINE, or they would stay at the oldest level.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ORTMODULE_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define ORTMODULE_SIMD
#endif
#define ORTMODULE_INLINE inline __attribute__((always_inline))

namespace ortmodule {

// e^x for x <= 88 with a relative error below 2e-7 (two units in the last place); 0 below -87.3. Cephes' reduction to
// [-ln2/2, ln2/2] and its degree-5 polynomial, branch-free so that loops around it vectorise. NaN stays NaN.
ORTMODULE_INLINE float simd_exp(float x) {
  const float clamped = x < -87.3f ? -87.3f : x;
  const float n = static_cast<float>(static_cast<int32_t>(clamped * 1.44269504f + (clamped < 0 ? -0.5f : 0.5f)));
  const float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < -87.3f ? 0.0f : p * scale;
}

}  // namespace ortmodule
