// packed_product of packed_product.h: blocks that fit the caches, tiles of 6 x 16 that fit AVX2's registers.
//
// The scheme is Goto's and BLIS's: a block of b is packed into panels of 16 columns, a block of a into panels of 6
// rows, and each pair of panels makes one tile of c. Zeros fill up the last panels, so that every panel is whole.
#include "ops/packed_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

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

constexpr int64_t kRows = 6, kColumns = 16;
// Measured with 32 KiB, 512 KiB and a shared cache. One panel of b stays in the first, a block of a in the second.
constexpr int64_t kBlockDepth = 384, kBlockRows = 48 * kRows, kBlockColumns = 48 * kColumns;

int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t rounded_up(int64_t n, int64_t multiple) { return parts_of(n, multiple) * multiple; }

// Where `start` is null, the tile is the product alone.
template <int rows>
AVX2_INLINE void tile(int64_t k, const float* a, const float* b, const float* start, int64_t start_row, float* c,
                      int64_t ld) {
  __m256 sums[rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
  for (int64_t p = 0; p < k; ++p, a += kRows, b += kColumns) {
    const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i);
      sums[i][0] = _mm256_fmadd_ps(x, b0, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(x, b1, sums[i][1]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    if (start) {
      sums[i][0] = _mm256_add_ps(sums[i][0], _mm256_loadu_ps(start + i * start_row));
      sums[i][1] = _mm256_add_ps(sums[i][1], _mm256_loadu_ps(start + i * start_row + 8));
    }
    _mm256_storeu_ps(c + i * ld, sums[i][0]);
    _mm256_storeu_ps(c + i * ld + 8, sums[i][1]);
  }
}

AVX2 void whole_tile(int64_t rows, int64_t k, const float* a, const float* b, const float* start, int64_t start_row,
                     float* c, int64_t ld) {
  switch (rows) {
    case 6:
      return tile<6>(k, a, b, start, start_row, c, ld);
    case 5:
      return tile<5>(k, a, b, start, start_row, c, ld);
    case 4:
      return tile<4>(k, a, b, start, start_row, c, ld);
    case 3:
      return tile<3>(k, a, b, start, start_row, c, ld);
    case 2:
      return tile<2>(k, a, b, start, start_row, c, ld);
    default:
      return tile<1>(k, a, b, start, start_row, c, ld);
  }
}

// A tile of fewer columns, by way of a whole one.
void part_tile(int64_t rows, int64_t columns, int64_t k, const float* a, const float* b, const float* start,
               int64_t start_row, float* c, int64_t ld) {
  alignas(32) float whole[kRows * kColumns];
  if (start)
    for (int64_t i = 0; i < rows; ++i) {
      std::fill_n(std::copy_n(start + i * start_row, columns, whole + i * kColumns), kColumns - columns, 0.0f);
    }
  whole_tile(rows, k, a, b, start ? whole : nullptr, kColumns, whole, kColumns);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(whole + i * kColumns, columns, c + i * ld);
}

// to[p * width + i] = from(i, p), i < count, p < depth; zeros for the i up to `width`.
void pack_any(const StridedMatrix& from, int64_t count, int64_t depth, int64_t width, float* to) {
  for (int64_t p = 0; p < depth; ++p, to += width) {
    for (int64_t i = 0; i < count; ++i) to[i] = from.data[i * from.row + p * from.column];
    std::fill(to + count, to + width, 0.0f);
  }
}

AVX2 void pack_columns_of(const StridedMatrix& b, int64_t columns, int64_t depth, float* to) {
  const StridedMatrix lines{b.data, b.column, b.row};  // pack_any counts by what is side by side in a panel
  for (int64_t j = 0; j < columns; j += kColumns, to += depth * kColumns) {
    const StridedMatrix from = lines.from(j, 0);
    int64_t p = 0;
    if (columns - j >= kColumns && b.column == 1) {
      for (; p < depth; ++p) {
        _mm256_store_ps(to + p * kColumns, _mm256_loadu_ps(from.data + p * b.row));
        _mm256_store_ps(to + p * kColumns + 8, _mm256_loadu_ps(from.data + p * b.row + 8));
      }
    } else if (columns - j >= kColumns && b.row == 1) {
      for (; p + 8 <= depth; p += 8) {
        transpose_eight(from.data + p, b.column, to + p * kColumns, kColumns);
        transpose_eight(from.data + 8 * b.column + p, b.column, to + p * kColumns + 8, kColumns);
      }
    }
    pack_any(from.from(0, p), std::min(kColumns, columns - j), depth - p, kColumns, to + p * kColumns);
  }
}

AVX2 void pack_rows_of(const StridedMatrix& a, int64_t rows, int64_t depth, float* to) {
  for (int64_t i = 0; i < rows; i += kRows, to += depth * kRows) {
    const StridedMatrix from = a.from(i, 0);
    const float* x = from.data;
    int64_t p = 0;
    if (rows - i >= kRows && a.row == 1) {
      for (; p < depth; ++p) {
        const float* line = x + p * a.column;
        float* out = to + p * kRows;
        _mm_storeu_ps(out, _mm_loadu_ps(line));
        out[4] = line[4];
        out[5] = line[5];
      }
    } else if (rows - i >= kRows && a.column == 1) {
      for (; p + 4 <= depth; p += 4) {
        __m128 x0 = _mm_loadu_ps(x + p), x1 = _mm_loadu_ps(x + a.row + p), x2 = _mm_loadu_ps(x + 2 * a.row + p),
               x3 = _mm_loadu_ps(x + 3 * a.row + p);
        const __m128 x4 = _mm_loadu_ps(x + 4 * a.row + p), x5 = _mm_loadu_ps(x + 5 * a.row + p);
        _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
        const __m128 low = _mm_unpacklo_ps(x4, x5), high = _mm_unpackhi_ps(x4, x5);
        float* out = to + p * kRows;
        _mm_storeu_ps(out, x0);
        _mm_storel_pi(reinterpret_cast<__m64*>(out + 4), low);
        _mm_storeu_ps(out + 6, x1);
        _mm_storeh_pi(reinterpret_cast<__m64*>(out + 10), low);
        _mm_storeu_ps(out + 12, x2);
        _mm_storel_pi(reinterpret_cast<__m64*>(out + 16), high);
        _mm_storeu_ps(out + 18, x3);
        _mm_storeh_pi(reinterpret_cast<__m64*>(out + 22), high);
      }
    }
    pack_any(from.from(0, p), std::min(kRows, rows - i), depth - p, kRows, to + p * kRows);
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

void on_one_thread(int64_t m, int64_t n, int64_t k, const StridedMatrix& a, const StridedMatrix& b, const float* start,
                   int64_t start_row, float* c, int64_t ld) {
  const int64_t step = rounded_up(parts_of(k, parts_of(k, kBlockDepth)), 8);  // blocks of about one size
  const int64_t right_size = std::min(kBlockColumns, rounded_up(n, kColumns)) * step;
  const int64_t left_size = std::min(kBlockRows, rounded_up(m, kRows)) * step;
  float* const right = panels(right_size + left_size);  // first: it is read as aligned vectors
  float* const left = right + right_size;
  for (int64_t column = 0; column < n; column += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n - column);
    for (int64_t p = 0; p < k; p += step) {
      const int64_t depth = std::min(step, k - p);
      pack_columns_of(b.from(p, column), columns, depth, right);
      const float* const first = p ? c : start;
      const int64_t first_row = p ? ld : start_row;
      for (int64_t row = 0; row < m; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, m - row);
        pack_rows_of(a.from(row, p), rows, depth, left);
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = std::min(kColumns, columns - j);
          for (int64_t i = 0; i < rows; i += kRows) {
            const int64_t height = std::min(kRows, rows - i), y = row + i, x = column + j;
            const float* const from = first ? first + y * first_row + x : nullptr;
            if (width == kColumns)
              whole_tile(height, depth, left + i * depth, right + j * depth, from, first_row, c + y * ld + x, ld);
            else
              part_tile(height, width, depth, left + i * depth, right + j * depth, from, first_row, c + y * ld + x, ld);
          }
        }
      }
    }
  }
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
  static const bool wide = foreign && __builtin_cpu_supports("avx512f");
  static const bool split = wide && __builtin_cpu_is("amdfam19h");  // Zen 4: a vector of 512 bits is two of 256
  if (!foreign || threads > kMostThreads) return false;
  if (split) return m >= 24 && n >= 16 && k >= 16 && m * n * k >= int64_t{1} << 17;
  // Elsewhere with AVX-512 oneDNN is twice as fast as either.
  if (wide || m * n * k < (int64_t{1} << 22) * threads) return false;
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
  const int64_t rows = rounded_up(parts_of(m, by_row), kRows), columns = rounded_up(parts_of(n, by_column), kColumns);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / by_column * rows, j = t % by_column * columns;
      if (i >= m || j >= n) continue;
      on_one_thread(std::min(rows, m - i), std::min(columns, n - j), k, a.from(i, 0), b.from(0, j),
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
