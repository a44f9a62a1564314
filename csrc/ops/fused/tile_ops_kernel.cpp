// The levels of tile_ops.h. Sleef, the library behind ATen's own kernels, is called by its functions' names: ATen's
// vector classes exist for one level per translation unit, set by compiler flags for the whole of it, and inline
// functions compiled under such flags may end up in code for older processors.
#include "ops/fused/tile_ops.h"

#include <cmath>

#include "kernels/cpu_simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

// Weak: a torch that does not export one leaves it null, and the lanes are then computed one by one.
#define ORTMODULE_SLEEF(name)                                           \
  extern "C" __attribute__((weak)) __m256 Sleef_##name##f8_u10(__m256); \
  extern "C" __attribute__((weak)) __m512 Sleef_##name##f16_u10(__m512);
ORTMODULE_SLEEF(exp)
ORTMODULE_SLEEF(log)
ORTMODULE_SLEEF(tanh)
#undef ORTMODULE_SLEEF

#define LEVEL fused_v4
#define LEVEL_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"), optimize("O3")))
#define LEVEL_BYTES 64
#define LEVEL_SLEEF(name) Sleef_##name##f16_u10
// With a mask: without one GCC 12 warns of its own header.
#define LEVEL_SQRT(x) _mm512_maskz_sqrt_ps(0xFFFF, x)
#include "ops/fused/tile_ops_level.h"  // NOLINT: once per level

#define LEVEL fused_v3
#define LEVEL_TARGET __attribute__((target("avx2,fma"), optimize("O3")))
#define LEVEL_BYTES 32
#define LEVEL_SLEEF(name) Sleef_##name##f8_u10
#define LEVEL_SQRT(x) _mm256_sqrt_ps(x)
#include "ops/fused/tile_ops_level.h"  // NOLINT: once per level
#endif

namespace ortmodule {
namespace {
typedef float Four __attribute__((vector_size(16)));
constexpr Four (*kNone)(Four) = nullptr;
ORTMODULE_INLINE Four root(Four x) {
  for (int i = 0; i < 4; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
}  // namespace
}  // namespace ortmodule

#define LEVEL fused_base
#define LEVEL_TARGET
#define LEVEL_BYTES 16
#define LEVEL_SLEEF(name) kNone
#define LEVEL_SQRT(x) root(x)
#include "ops/fused/tile_ops_level.h"  // NOLINT: once per level

namespace ortmodule {

const TileOps& tile_ops() {
  static const TileOps& best = []() -> const TileOps& {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
      return fused_v4::kOps;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fused_v3::kOps;
#endif
    return fused_base::kOps;
  }();
  return best;
}

}  // namespace ortmodule
