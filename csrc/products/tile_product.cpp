// The products of tile_product.h, compiled for each instruction-set level and chosen when the library loads.
#include "products/tile_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "kernels/cpu_simd.h"
#include "products/transpose_eight.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ortmodule {
namespace {

using Product = void (*)(int64_t, int64_t, int64_t, const LeftOperand&, const Panels&, float*, int64_t,
                         const Triangle&);

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
#include "products/tile_product_level.h"  // NOLINT: once per level

#define LEVEL v4_pairs
#define PAIRS_TARGET __attribute__((target("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define LEVEL_TARGET PAIRS_TARGET
#define LEVEL_BYTES 64
#define LEVEL_ROWS 12
#define LEVEL_PAIRS
#include "products/tile_product_level.h"  // NOLINT: once per level

#define LEVEL v3
#define LEVEL_TARGET __attribute__((target("avx2,fma")))
#define LEVEL_BYTES 32
#define LEVEL_ROWS 6
#include "products/tile_product_level.h"  // NOLINT: once per level
#endif

#define LEVEL base
#define LEVEL_TARGET
#define LEVEL_BYTES 16
#define LEVEL_ROWS 6
#include "products/tile_product_level.h"  // NOLINT: once per level

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

// to[p * width + i] = from[i * step + p] for p < size, i < count.
ORTMODULE_INLINE void transpose_any(const float* from, int64_t step, float* to, int64_t width, int64_t size,
                                    int64_t count) {
  for (int64_t p = 0; p < size; ++p)
    for (int64_t i = 0; i < count; ++i) to[p * width + i] = from[i * step + p];
}

#if defined(__x86_64__) && defined(__GNUC__)
// The same for 8 rows.
__attribute__((target("avx2"))) void transpose_rows(const float* from, int64_t step, float* to, int64_t width,
                                                    int64_t size) {
  int64_t p = 0;
  for (; p + 8 <= size; p += 8) transpose_eight(from + p, step, to + p * width, width);
  transpose_any(from + p, step, to + p * width, width, size - p, 8);
}

// A mask of the first n of 16 lanes; n may be out of range.
inline uint16_t first_of_16(int64_t n) { return static_cast<uint16_t>((1u << std::clamp<int64_t>(n, 0, 16)) - 1); }
#endif

}  // namespace

int64_t panel_width() { return level().width; }

void pack_columns(float* panels, int64_t first, const float* rows, int64_t step, int64_t count, int64_t size) {
  const int64_t width = panel_width();
  for (int64_t j = 0; j < count; j += width) {
    float* panel = panels + (first + j) * size;
    const float* from = rows + j * step;
    const int64_t filled = std::min(width, count - j);
    int64_t done = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    if (width >= 16)  // a level with AVX2
      for (; done + 8 <= filled; done += 8) transpose_rows(from + done * step, step, panel + done, width, size);
#endif
    transpose_any(from + done * step, step, panel + done, width, size, filled - done);
    if (filled < width)
      for (int64_t p = 0; p < size; ++p) std::fill(panel + p * width + filled, panel + (p + 1) * width, 0.0f);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
void pair_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add, const Triangle& triangle) {
  (add ? v4_pairs::kLevel.add : v4_pairs::kLevel.set)(m, n, k, a, b, c, ld, triangle);
}

PAIRS_TARGET void round_to_pairs(const float* row, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 32) {
    const __m512 first = _mm512_maskz_loadu_ps(first_of_16(n - i), row + i);
    const __m512 second = _mm512_maskz_loadu_ps(first_of_16(n - i - 16), row + i + 16);
    _mm512_mask_storeu_epi32(out + i / 2, first_of_16((n - i + 1) / 2), (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
}

PAIRS_TARGET void round_to_pairs(const float* even, const float* odd, int64_t n, float* out) {
  // Words 0 to 15 of a vector are of the even row, the others of the odd one.
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                          21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 some = first_of_16(n - i);
    const __m512 low = _mm512_maskz_loadu_ps(some, even + i);
    const __m512 high = odd ? _mm512_maskz_loadu_ps(some, odd + i) : _mm512_setzero_ps();
    const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_mask_storeu_epi32(out + i, some, _mm512_permutexvar_epi16(places, words));
  }
}
#else
namespace {
[[noreturn]] void no_pairs() { fail(ErrorCode::kInternal, "products of pairs need AVX-512 BF16"); }
}  // namespace

void pair_product(int64_t, int64_t, int64_t, const LeftOperand&, const Panels&, float*, int64_t, bool,
                  const Triangle&) {
  no_pairs();
}
void round_to_pairs(const float*, int64_t, float*) { no_pairs(); }
void round_to_pairs(const float*, const float*, int64_t, float*) { no_pairs(); }
#endif

void tile_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add, const Triangle& triangle) {
  (add ? level().add : level().set)(m, n, k, a, b, c, ld, triangle);
}

}  // namespace ortmodule
