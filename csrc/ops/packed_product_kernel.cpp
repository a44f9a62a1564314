// packed_product of packed_product.h: blocks that fit the caches, tiles of c that fit the registers: 6 x 16 with AVX2,
// 12 x 32 with AVX-512.
//
// The scheme is Goto's and BLIS's: a block of b is packed into panels as wide as a tile, a block of a into panels as
// high, and each pair of panels makes one tile of c. Zeros fill up the last panels, so that every panel is whole.
#include "ops/packed_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/status.h"
#include "ops/transpose_eight.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ORTMODULE_PACKED
#include <immintrin.h>
#endif

namespace ortmodule {

#ifdef ORTMODULE_PACKED
namespace {

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_INLINE inline __attribute__((always_inline, target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx2,fma")))

int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t rounded_up(int64_t n, int64_t multiple) { return parts_of(n, multiple) * multiple; }

// Each level has its tile, c[rows, kColumns] = a b + start from a panel of each (the product alone where `start` is
// null), and blocks whose sizes and order were measured.

// With 32 KiB, 512 KiB and a shared cache. One panel of b stays in the first, a block of a in the second.
struct Avx2 {
  static constexpr int kRows = 6, kLanes = 8, kColumns = 2 * kLanes;
  static constexpr int64_t kDepth = 384, kBlockRows = 48 * kRows, kBlockColumns = 48 * kColumns;
  static constexpr bool kAlongRows = false;

  template <int rows, int vectors>
  AVX2 static void tile(int64_t k, const float* a, const float* b, const float* start, int64_t start_row, float* c,
                        int64_t ld) {
    __m256 sums[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sums[i][j] = _mm256_setzero_ps();
    for (int64_t p = 0; p < k; ++p, a += kRows, b += kColumns) {
      __m256 right[vectors];
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) right[j] = _mm256_load_ps(b + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const __m256 x = _mm256_broadcast_ss(a + i);
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) sums[i][j] = _mm256_fmadd_ps(x, right[j], sums[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) {
        if (start) sums[i][j] = _mm256_add_ps(sums[i][j], _mm256_loadu_ps(start + i * start_row + j * kLanes));
        _mm256_storeu_ps(c + i * ld + j * kLanes, sums[i][j]);
      }
    }
  }
};

// With 32 KiB, 1 MiB and a shared cache. One panel of a stays in the first, a block of b in the second.
struct Avx512 {
  static constexpr int kRows = 12, kLanes = 16, kColumns = 2 * kLanes;
  static constexpr int64_t kDepth = 384, kBlockRows = 24 * kRows, kBlockColumns = 12 * kColumns;
  static constexpr int64_t kAhead = 4 * kColumns;  // floats of b's panel that are asked for ahead of their use
  static constexpr bool kAlongRows = true;

  template <int rows, int vectors>
  AVX512 static void tile(int64_t k, const float* a, const float* b, const float* start, int64_t start_row, float* c,
                          int64_t ld) {
    __m512 sums[rows][vectors];
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) {
        sums[i][j] = _mm512_setzero_ps();
        _mm_prefetch(c + i * ld + j * kLanes, _MM_HINT_T0);
      }
    }
    for (int64_t p = 0; p < k; ++p, a += kRows, b += kColumns) {
      __m512 right[vectors];
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) {
        right[j] = _mm512_load_ps(b + j * kLanes);
        _mm_prefetch(b + kAhead + j * kLanes, _MM_HINT_T0);
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const __m512 x = _mm512_set1_ps(a[i]);
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) sums[i][j] = _mm512_fmadd_ps(x, right[j], sums[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) {
        if (start) sums[i][j] = _mm512_add_ps(sums[i][j], _mm512_loadu_ps(start + i * start_row + j * kLanes));
        _mm512_storeu_ps(c + i * ld + j * kLanes, sums[i][j]);
      }
    }
  }
};

using Tile = void (*)(int64_t, const float*, const float*, const float*, int64_t, float*, int64_t);

template <class Level, int vectors, int... less>
constexpr std::array<Tile, sizeof...(less)> tiles(std::integer_sequence<int, less...>) {
  return {Level::template tile<less + 1, vectors>...};
}

// A tile whose columns are no whole vectors goes by way of one whose are.
template <class Level>
void tile(int64_t rows, int64_t columns, int64_t k, const float* a, const float* b, const float* start,
          int64_t start_row, float* c, int64_t ld) {
  constexpr auto heights = std::make_integer_sequence<int, Level::kRows>();
  static constexpr std::array by_size{tiles<Level, 1>(heights), tiles<Level, 2>(heights)};
  const int64_t width = columns <= Level::kLanes ? Level::kLanes : Level::kColumns;
  const Tile multiply = by_size[width / Level::kLanes - 1][rows - 1];
  if (columns == width) return multiply(k, a, b, start, start_row, c, ld);
  alignas(64) float whole[Level::kRows * Level::kColumns] = {};
  if (start)
    for (int64_t i = 0; i < rows; ++i) std::copy_n(start + i * start_row, columns, whole + i * width);
  multiply(k, a, b, start ? whole : nullptr, width, whole, width);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(whole + i * width, columns, c + i * ld);
}

// to[p * width + i] = from(i, p), i < count, p < depth; zeros for the i up to `width`.
void pack_any(const StridedMatrix& from, int64_t count, int64_t depth, int64_t width, float* to) {
  for (int64_t p = 0; p < depth; ++p, to += width) {
    for (int64_t i = 0; i < count; ++i) to[i] = from.data[i * from.row + p * from.column];
    std::fill(to + count, to + width, 0.0f);
  }
}

// to[p * width + i] = from[i * step + p] for p < 4, i < count: 4, or 2.
template <int count>
AVX2_INLINE void transpose_few(const float* from, int64_t step, float* to, int64_t width) {
  __m128 x0 = _mm_loadu_ps(from), x1 = _mm_loadu_ps(from + step);
  if constexpr (count == 4) {
    __m128 x2 = _mm_loadu_ps(from + 2 * step), x3 = _mm_loadu_ps(from + 3 * step);
    _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
    _mm_storeu_ps(to, x0);
    _mm_storeu_ps(to + width, x1);
    _mm_storeu_ps(to + 2 * width, x2);
    _mm_storeu_ps(to + 3 * width, x3);
  } else {
    const __m128 low = _mm_unpacklo_ps(x0, x1), high = _mm_unpackhi_ps(x0, x1);
    _mm_storel_pi(reinterpret_cast<__m64*>(to), low);
    _mm_storeh_pi(reinterpret_cast<__m64*>(to + width), low);
    _mm_storel_pi(reinterpret_cast<__m64*>(to + 2 * width), high);
    _mm_storeh_pi(reinterpret_cast<__m64*>(to + 3 * width), high);
  }
}

// One panel of whole width, from what is side by side in memory: across the panel, or along it.
template <int width>
AVX2 int64_t pack_panel(const StridedMatrix& from, int64_t depth, float* to) {
  int64_t p = 0;
  if (from.row == 1) {
    for (; p < depth; ++p) std::memcpy(to + p * width, from.data + p * from.column, width * sizeof(float));
  } else if (from.column == 1) {
    constexpr int eights = width / 8 * 8, fours = width / 4 * 4;
    for (; p + 8 <= depth; p += 8) {
      const float* x = from.data + p;
      float* out = to + p * width;
      for (int i = 0; i < eights; i += 8) transpose_eight(x + i * from.row, from.row, out + i, width);
      for (int q = 0; q < 8 && eights < width; q += 4) {
        if constexpr (fours > eights)
          transpose_few<4>(x + eights * from.row + q, from.row, out + q * width + eights, width);
        if constexpr (width > fours)
          transpose_few<2>(x + fours * from.row + q, from.row, out + q * width + fours, width);
      }
    }
  }
  return p;
}

// `lines` of `from`, `width` side by side in a panel.
template <int width>
void pack(const StridedMatrix& from, int64_t lines, int64_t depth, float* to) {
  for (int64_t i = 0; i < lines; i += width, to += depth * width) {
    const StridedMatrix panel = from.from(i, 0);
    const int64_t p = lines - i >= width ? pack_panel<width>(panel, depth, to) : 0;
    pack_any(panel.from(0, p), std::min<int64_t>(width, lines - i), depth - p, width, to + p * width);
  }
}

struct Free {
  void operator()(float* p) const { std::free(p); }
};

// A thread's panels, kept from product to product.
float* panels(size_t floats) {
  thread_local std::unique_ptr<float, Free> memory;
  thread_local size_t size = 0;
  if (floats > size) {
    memory.reset();
    size = 0;
    memory.reset(static_cast<float*>(std::aligned_alloc(4096, rounded_up(floats * sizeof(float), 4096))));
    ORTMODULE_CHECK(memory, kRuntime, "out of memory: ", floats * sizeof(float), " bytes for a matrix product");
    size = floats;
  }
  return memory.get();
}

template <class Level>
void on_one_thread(int64_t m, int64_t n, int64_t k, const StridedMatrix& a, const StridedMatrix& b, const float* start,
                   int64_t start_row, float* c, int64_t ld) {
  constexpr int64_t tall = Level::kRows, wide = Level::kColumns;
  const int64_t step = rounded_up(parts_of(k, parts_of(k, Level::kDepth)), 8);  // blocks of about one size
  const int64_t right_size = std::min(Level::kBlockColumns, rounded_up(n, wide)) * step;
  const int64_t left_size = std::min(Level::kBlockRows, rounded_up(m, tall)) * step;
  float* const right = panels(right_size + left_size);  // first: it is read as aligned vectors
  float* const left = right + right_size;
  for (int64_t column = 0; column < n; column += Level::kBlockColumns) {
    const int64_t columns = std::min(Level::kBlockColumns, n - column);
    for (int64_t p = 0; p < k; p += step) {
      const int64_t depth = std::min(step, k - p);
      const StridedMatrix block = b.from(p, column);
      pack<wide>({block.data, block.column, block.row}, columns, depth, right);
      const float* const first = p ? c : start;
      const int64_t first_row = p ? ld : start_row;
      for (int64_t row = 0; row < m; row += Level::kBlockRows) {
        const int64_t rows = std::min(Level::kBlockRows, m - row);
        pack<tall>(a.from(row, p), rows, depth, left);
        const int64_t down = parts_of(rows, tall), across = parts_of(columns, wide);
        for (int64_t t = 0; t < down * across; ++t) {
          const int64_t i = (Level::kAlongRows ? t / across : t % down) * tall;
          const int64_t j = (Level::kAlongRows ? t % across : t / down) * wide;
          const int64_t y = row + i, x = column + j;
          tile<Level>(std::min(tall, rows - i), std::min(wide, columns - j), depth, left + i * depth, right + j * depth,
                      first ? first + y * first_row + x : nullptr, first_row, c + y * ld + x, ld);
        }
      }
    }
  }
}

struct Way {
  int64_t rows, columns;
  decltype(&on_one_thread<Avx2>) run;
};

template <class Level>
constexpr Way way_of() {
  return {Level::kRows, Level::kColumns, on_one_thread<Level>};
}

bool has_avx512() {
  static const bool found = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
  }();
  return found;
}

// How many threads share the rows of c; the others share the columns. Every thread packs what it reads itself, so the
// parts should be as square as they can be.
int64_t threads_by_row(int64_t m, int64_t n, int64_t threads) {
  int64_t best = 1;
  const auto reads = [&](int64_t by_row) { return parts_of(m, by_row) + parts_of(n, threads / by_row); };
  for (int64_t by_row = 2; by_row <= threads; ++by_row)
    if (threads % by_row == 0 && reads(by_row) < reads(best)) best = by_row;
  return best;
}

// Measured with one and two threads, as are the bounds below. Shorter parts are not worth their threads meeting.
constexpr int64_t kMostThreads = 8, kLeastPart = int64_t{1} << 19;

// Zen 4, the one family 19h with AVX-512, splits vectors of 512 bits in two: oneDNN gains little over MKL there.
bool has_split_avx512() {
  static const bool found = has_avx512() && __builtin_cpu_is("amdfam19h");
  return found;
}

}  // namespace

bool has_packed_product() {
  static const bool found = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }();
  return found;
}

bool packed_product_is_best(int64_t m, int64_t n, int64_t k, int threads) {
  static const bool foreign = has_packed_product() && !__builtin_cpu_is("intel");
  if (!foreign || threads > kMostThreads) return false;
  if (has_split_avx512()) return m >= 24 && n >= 16 && k >= 16 && m * n * k >= int64_t{1} << 17;
  // With AVX-512 of full width oneDNN is twice as fast as either.
  if (has_avx512() || m * n * k < (int64_t{1} << 22) * threads) return false;
  const bool few_rows = m >= 16 && m <= 128 && n >= 2048;
  const bool short_sums = k >= 16 && k <= 96 && m * n >= int64_t{1} << 20;
  return few_rows || short_sums;
}

void packed_product(int64_t m, int64_t n, int64_t k, const StridedMatrix& a, const StridedMatrix& b, const float* start,
                    int64_t start_row, float* c, int64_t ld) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m; ++i) {
      if (!start)
        std::fill_n(c + i * ld, n, 0.0f);
      else if (start != c)
        std::copy_n(start + i * start_row, n, c + i * ld);
    }
    return;
  }
  const int64_t threads = std::clamp<int64_t>(m * n * k / kLeastPart, 1, at::get_num_threads());
  const int64_t by_row = threads_by_row(m, n, threads), by_column = threads / by_row;
  const Way way = has_avx512() ? way_of<Avx512>() : way_of<Avx2>();
  const int64_t rows = rounded_up(parts_of(m, by_row), way.rows);
  const int64_t columns = rounded_up(parts_of(n, by_column), way.columns);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / by_column * rows, j = t % by_column * columns;
      if (i >= m || j >= n) continue;
      way.run(std::min(rows, m - i), std::min(columns, n - j), k, a.from(i, 0), b.from(0, j),
              start ? start + i * start_row + j : nullptr, start_row, c + i * ld + j, ld);
    }
  });
}

#else

bool has_packed_product() { return false; }
bool packed_product_is_best(int64_t, int64_t, int64_t, int) { return false; }
void packed_product(int64_t, int64_t, int64_t, const StridedMatrix&, const StridedMatrix&, const float*, int64_t,
                    float*, int64_t) {
  ORTMODULE_CHECK(false, kInternal, "packed_product needs AVX2");
}

#endif

}  // namespace ortmodule
