// packed_product of packed_product.h: blocks that fit the caches, tiles of c that fit the registers: 6 x 16 with AVX2,
// 12 x 32 with AVX-512.
//
// The scheme is Goto's and BLIS's: a block of b is packed into panels as wide as a tile, a block of a into panels as
// high, and each pair of panels makes one tile of c. Zeros fill up the last panels, so that every panel is whole. With
// AVX-512, where a copy costs a twentieth of a tile and more where few tiles read it, rows or columns of a that the
// cache bears are read where they lie.
#include "products/packed_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "base/status.h"
#include "kernels/processor.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ORTMODULE_PACKED
#include "products/packed_panels.h"
#endif

namespace ortmodule {

#ifdef ORTMODULE_PACKED
namespace {

int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t rounded_up(int64_t n, int64_t multiple) { return parts_of(n, multiple) * multiple; }

struct Free {
  void operator()(float* p) const { std::free(p); }
};

float* allocate(size_t floats) {
  auto* const memory = static_cast<float*>(std::aligned_alloc(4096, rounded_up(floats * sizeof(float), 4096)));
  ORTMODULE_CHECK(memory, kRuntime, "out of memory: ", floats * sizeof(float), " bytes for a matrix product");
  return memory;
}

// A thread's panels, kept from product to product.
float* panels(size_t floats) {
  thread_local std::unique_ptr<float, Free> memory;
  thread_local size_t size = 0;
  if (floats > size) {
    memory.reset();
    size = 0;
    memory.reset(allocate(floats));
    size = floats;
  }
  return memory.get();
}

// How much of what is summed over is a block: all blocks are of about one size.
template <class Level>
int64_t block_depth(int64_t k) {
  constexpr int64_t per_word = kPerWord<typename Level::Element>;
  return rounded_up(parts_of(k, parts_of(k, Level::kDepth * per_word)), 8 * per_word);
}

// The panels of all of b: block after block of what is summed over, in each one panel after another.
template <class Level>
void pack_all(int64_t n, int64_t k, const StridedMatrix& b, float* to) {
  const int64_t step = block_depth<Level>(k), width = rounded_up(n, Level::kColumns);
  for (int64_t p = 0; p < k; p += step)
    pack<Level::kColumns>(StridedMatrix{b.from(p, 0).data, b.column, b.row}, n, std::min(step, k - p), to + p * width);
}

// As much of a product as one call works on.
template <class Level, class Out>
struct Part {
  int64_t m, n, k;
  Strided<typename Level::Element> a, b;
  const float* start;
  int64_t start_row;
  Out* c;
  int64_t ld;
  const float* packed = nullptr;  // all of b in panels, `packed_width` columns of them, if it is
  int64_t packed_width = 0;
  int64_t first_column = 0;  // of all of b

  Part of(int64_t i, int64_t rows, int64_t j, int64_t columns) const {
    return {std::min(rows, m - i),
            std::min(columns, n - j),
            k,
            a.from(i, 0),
            b.from(0, j),
            start ? start + i * start_row + j : nullptr,
            start_row,
            c + i * ld + j,
            ld,
            packed,
            packed_width,
            first_column + j};
  }
};

// `a`, of sums over k, as tiles read it where it lies; without data where it has to be packed. Its rows are whole words
// side by side and do not meet in one set of the first cache, or its columns are side by side and not so far from each
// other that each is on a page of its own.
template <class Level>
Left in_place(const Strided<typename Level::Element>& a, int64_t k) {
  using Element = typename Level::Element;
  constexpr int64_t per_word = kPerWord<Element>, kOneSet = 4096 / sizeof(float);
  const auto* const data = reinterpret_cast<const float*>(a.data);
  if (!Level::kInPlace) return {};
  if (std::is_same_v<Element, float> && a.row == 1 && a.column < kOneSet / 2) return {data, 1, a.column, 1};
  if (a.column != 1 || a.row % per_word != 0 || k % per_word != 0) return {};
  const int64_t row = a.row / per_word;
  if (row <= 0 || row % (kOneSet / 2) == 0) return {};
  return {data, row, 1, row};
}

// The tiles of two blocks of `words`, of which the right one is packed. left.ahead goes on from tile to tile.
template <class Level, class Out>
void multiply_blocks(int64_t rows, int64_t columns, int64_t words, const Left& left, const float* right,
                     const float* start, int64_t start_row, Out* c, int64_t ld) {
  constexpr int64_t tall = Level::kRows, wide = Level::kColumns;
  const int64_t down = parts_of(rows, tall), across = parts_of(columns, wide);
  for (int64_t t = 0; t < down * across; ++t) {
    const int64_t i = (Level::kAlongRows ? t / across : t % down) * tall;
    const int64_t j = (Level::kAlongRows ? t % across : t / down) * wide;
    tile<Level>(std::min(tall, rows - i), std::min(wide, columns - j), words,
                {left.data + i * left.tile, left.row, left.place, left.tile,
                 left.ahead ? left.ahead + t * words * left.advance : nullptr, left.advance},
                right + j * words, start ? start + i * start_row + j : nullptr, start_row, c + i * ld + j, ld);
  }
}

// Few rows of a use up a block of b that lies in panels before the processor has found the next one in memory: they
// were at four fifths of their rate. So it is asked for meanwhile, evenly.
template <class Level, class Out>
struct NextBlock {
  const float* data = nullptr;
  int64_t advance = 0;  // floats at each place of each tile

  // After the block of `columns` from `column` on and of the depth `step` from `p` on.
  NextBlock(const Part<Level, Out>& part, int64_t column, int64_t p, int64_t step) {
    constexpr int64_t per_word = kPerWord<typename Level::Element>, kMostRows = 64 * Level::kRows;
    if (!part.packed || part.m > kMostRows) return;
    const int64_t words = parts_of(std::min(step, part.k - p), per_word);
    p += step;
    if (p >= part.k) {
      p = 0;
      column += Level::kBlockColumns;
    }
    if (column >= part.n) return;
    const int64_t next = parts_of(std::min(step, part.k - p), per_word);
    data = part.packed + p / per_word * part.packed_width + (part.first_column + column) * next;
    const int64_t size = rounded_up(std::min(Level::kBlockColumns, part.n - column), Level::kColumns) * next;
    advance = parts_of(size, parts_of(part.m, Level::kRows) * Level::kBlockColumns / Level::kColumns * words);
  }
};

template <class Level, class Out>
void on_one_thread(const Part<Level, Out>& part) {
  constexpr int64_t per_word = kPerWord<typename Level::Element>;
  const int64_t step = block_depth<Level>(part.k);
  const int64_t right_size =
      part.packed ? 0 : std::min(Level::kBlockColumns, rounded_up(part.n, Level::kColumns)) * step / per_word;
  const int64_t left_size = std::min(Level::kBlockRows, rounded_up(part.m, Level::kRows)) * step / per_word;
  // What is rounded in the end is summed up elsewhere.
  const bool collects = !std::is_same_v<Out, float> && step < part.k;
  float* const own = panels(right_size + left_size + (collects ? part.m * Level::kBlockColumns : 0));
  float* const left = own + right_size;  // second: the first is read as aligned vectors
  float* const sums = left + left_size;
  for (int64_t column = 0; column < part.n; column += Level::kBlockColumns) {
    const int64_t columns = std::min(Level::kBlockColumns, part.n - column);
    for (int64_t p = 0; p < part.k; p += step) {
      const int64_t depth = std::min(step, part.k - p), words = parts_of(depth, per_word);
      const float* right = own;
      if (part.packed) {
        right = part.packed + p / per_word * part.packed_width + (part.first_column + column) * words;
      } else {
        const auto block = part.b.from(p, column);
        pack<Level::kColumns>(Strided{block.data, block.column, block.row}, columns, depth, own);
      }
      const NextBlock<Level, Out> next(part, column, p, step);
      for (int64_t row = 0; row < part.m; row += Level::kBlockRows) {
        const int64_t rows = std::min(Level::kBlockRows, part.m - row);
        const auto above = part.a.from(row, p);
        Left from_a = in_place<Level>(above, part.k);
        if (!from_a.data) {
          pack<Level::kRows>(above, rows, depth, left);
          from_a = {left, 1, Level::kRows, words};
        }
        if (next.data) {
          from_a.ahead = next.data + row / Level::kRows * parts_of(columns, Level::kColumns) * words * next.advance;
          from_a.advance = next.advance;
        }
        const float* start = part.start ? part.start + row * part.start_row + column : nullptr;
        Out* const c = part.c + row * part.ld + column;
        const auto multiply = [&](const float* from, int64_t from_row, auto* to, int64_t to_row) {
          multiply_blocks<Level>(rows, columns, words, from_a, right, from, from_row, to, to_row);
        };
        if constexpr (std::is_same_v<Out, float>) {
          p ? multiply(c, part.ld, c, part.ld) : multiply(start, part.start_row, c, part.ld);
        } else {
          float* const sum = sums + row * columns;
          if (p) start = sum;
          const int64_t start_row = p ? columns : part.start_row;
          p + depth < part.k ? multiply(start, start_row, sum, columns) : multiply(start, start_row, c, part.ld);
        }
      }
    }
  }
}

// How many threads share the rows of c; the others share the columns. Every thread packs what it reads itself, so the
// parts should be as square as they can be; else by rows, as the layers before and after share their work.
int64_t threads_by_row(int64_t m, int64_t n, int64_t threads) {
  int64_t best = 1;
  const auto reads = [&](int64_t by_row) { return parts_of(m, by_row) + parts_of(n, threads / by_row); };
  for (int64_t by_row = 2; by_row <= threads; ++by_row)
    if (threads % by_row == 0 && reads(by_row) <= reads(best)) best = by_row;
  return best;
}

// Measured with one and two threads, as are the bounds below. Shorter parts are not worth their threads meeting.
constexpr int64_t kLeastPart = int64_t{1} << 19;
// Of which sums are kept until they are rounded, at most: some MiB per thread.
constexpr int64_t kMostSums = 2048;

// Shared out to ATen's threads.
template <class Level, class Out>
void multiply(const Part<Level, Out>& all) {
  const int64_t most_threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t threads = std::clamp<int64_t>(all.m * all.n * all.k / kLeastPart, 1, most_threads);
  const int64_t by_row = threads_by_row(all.m, all.n, threads), by_column = threads / by_row;
  const int64_t rows = rounded_up(parts_of(all.m, by_row), Level::kRows);
  const int64_t columns = rounded_up(parts_of(all.n, by_column), Level::kColumns);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t / by_column * rows, j = t % by_column * columns;
      if (i >= all.m || j >= all.n) continue;
      const Part<Level, Out> part = all.of(i, rows, j, columns);
      const int64_t most = std::is_same_v<Out, float> ? part.m : kMostSums;
      for (int64_t y = 0; y < part.m; y += most) on_one_thread<Level, Out>(part.of(y, most, 0, columns));
    }
  });
}

}  // namespace

bool has_packed_product() {
  static const bool found = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }();
  return found;
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
  if (has_avx512()) return multiply<Avx512<float>, float>({m, n, k, a, b, start, start_row, c, ld});
  multiply<Avx2<float>, float>({m, n, k, a, b, start, start_row, c, ld});
}

void PackedFactor::Free::operator()(float* p) const { std::free(p); }

PackedFactor::PackedFactor(int64_t n, int64_t k, const StridedMatrix& b) : n_(n), k_(k) {
  ORTMODULE_CHECK(n > 0 && k > 0, kInternal, "an empty matrix has no panels");
  const int64_t wide = has_avx512() ? Avx512<float>::kColumns : Avx2<float>::kColumns;
  panels_.reset(allocate(rounded_up(n, wide) * k));
  (has_avx512() ? pack_all<Avx512<float>> : pack_all<Avx2<float>>)(n, k, b, panels_.get());
}

void packed_product(int64_t m, const StridedMatrix& a, const PackedFactor& b, const float* start, int64_t start_row,
                    float* c, int64_t ld) {
  if (m <= 0) return;
  const auto run = [&]<class Level>() {
    const int64_t width = rounded_up(b.n(), Level::kColumns);
    multiply<Level, float>({m, b.n(), b.k(), a, {}, start, start_row, c, ld, b.panels(), width});
  };
  has_avx512() ? run.template operator()<Avx512<float>>() : run.template operator()<Avx2<float>>();
}

namespace {

template <class T>
Strided<T> as(const StridedBfloat16& matrix) {
  return {reinterpret_cast<const T*>(matrix.data), matrix.row, matrix.column};
}

template <class Level>
void multiply_bfloat16(int64_t m, int64_t n, int64_t k, const StridedBfloat16& a, const StridedBfloat16& b,
                       const float* start, uint16_t* c, int64_t ld) {
  using T = typename Level::Element;
  multiply<Level, uint16_t>({m, n, k, as<T>(a), as<T>(b), start, 0, c, ld});
}

}  // namespace

void packed_product(int64_t m, int64_t n, int64_t k, const StridedBfloat16& a, const StridedBfloat16& b,
                    const float* start, uint16_t* c, int64_t ld, bool pairs) {
  if (m <= 0 || n <= 0) return;
  (pairs          ? multiply_bfloat16<Avx512<Paired>>
   : has_avx512() ? multiply_bfloat16<Avx512<Widened>>
                  : multiply_bfloat16<Avx2<Widened>>)(m, n, k, a, b, start, c, ld);
}

#else

bool has_packed_product() { return false; }
void packed_product(int64_t, int64_t, int64_t, const StridedMatrix&, const StridedMatrix&, const float*, int64_t,
                    float*, int64_t) {
  ORTMODULE_CHECK(false, kInternal, "packed_product needs AVX2");
}

void packed_product(int64_t, int64_t, int64_t, const StridedBfloat16&, const StridedBfloat16&, const float*, uint16_t*,
                    int64_t, bool) {
  ORTMODULE_CHECK(false, kInternal, "packed_product needs AVX2");
}

void PackedFactor::Free::operator()(float* p) const { std::free(p); }
PackedFactor::PackedFactor(int64_t, int64_t, const StridedMatrix&) {
  ORTMODULE_CHECK(false, kInternal, "packed_product needs AVX2");
}
void packed_product(int64_t, const StridedMatrix&, const PackedFactor&, const float*, int64_t, float*, int64_t) {
  ORTMODULE_CHECK(false, kInternal, "packed_product needs AVX2");
}

#endif

}  // namespace ortmodule
