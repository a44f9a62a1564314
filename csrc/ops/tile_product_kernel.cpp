// The products of tile_product.h, compiled for each instruction-set level and chosen when the library loads.
#include "ops/tile_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ops/cpu_simd.h"

namespace ortmodule {
namespace {

using Product = void (*)(int64_t, int64_t, int64_t, const LeftOperand&, const Panels&, float*, int64_t);

struct Level {
  int64_t width;
  Product set, add;
};

}  // namespace
}  // namespace ortmodule

#if defined(__x86_64__) && defined(__GNUC__)
#define LEVEL v4
#define LEVEL_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define LEVEL_BYTES 64
#define LEVEL_ROWS 12
#include "ops/tile_product_level.h"  // NOLINT: once per level

#define LEVEL v3
#define LEVEL_TARGET __attribute__((target("avx2,fma")))
#define LEVEL_BYTES 32
#define LEVEL_ROWS 6
#include "ops/tile_product_level.h"  // NOLINT: once per level
#endif

#define LEVEL base
#define LEVEL_TARGET
#define LEVEL_BYTES 16
#define LEVEL_ROWS 6
#include "ops/tile_product_level.h"  // NOLINT: once per level

namespace ortmodule {
namespace {

const Level& level() {
  static const Level& best = []() -> const Level& {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
      return v4::kLevel;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return v3::kLevel;
#endif
    return base::kLevel;
  }();
  return best;
}

template <int width>
ORTMODULE_INLINE void transpose_panel(float* panel, const float* rows, int64_t step, int64_t size) {
  for (int64_t p = 0; p < size; ++p)
    for (int j = 0; j < width; ++j) panel[p * width + j] = rows[j * step + p];
}

}  // namespace

int64_t panel_width() { return level().width; }

ORTMODULE_SIMD void pack_columns(float* panels, int64_t first, const float* rows, int64_t step, int64_t count,
                                 int64_t size) {
  const int64_t width = panel_width();
  for (int64_t j = 0; j < count; j += width) {
    float* panel = panels + (first + j) * size;
    const float* from = rows + j * step;
    const int64_t filled = std::min(width, count - j);
    if (filled == 8 && width == 8) {
      transpose_panel<8>(panel, from, step, size);
    } else if (filled == 16 && width == 16) {
      transpose_panel<16>(panel, from, step, size);
    } else if (filled == 32) {
      transpose_panel<32>(panel, from, step, size);
    } else {
      for (int64_t p = 0; p < size; ++p)
        for (int64_t i = 0; i < width; ++i) panel[p * width + i] = i < filled ? from[i * step + p] : 0.0f;
    }
  }
}

void tile_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add) {
  (add ? level().add : level().set)(m, n, k, a, b, c, ld);
}

}  // namespace ortmodule
