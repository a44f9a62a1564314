// What packed_product is made of at each instruction-set level: tiles of the result that fit the registers, and panels
// of the operands as wide as a tile. Only packed_product_kernel.cpp includes this header.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "products/packed_product.h"
#include "products/transpose_eight.h"

namespace ortmodule {

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_INLINE inline __attribute__((always_inline, target("avx2,fma")))
#define AVX512 __attribute__((target("avx512bf16,avx512f,avx512vl,avx512bw,avx2,fma")))
#define AVX512_INLINE inline __attribute__((always_inline, target("avx512bf16,avx512f,avx512vl,avx512bw,avx2,fma")))

// What a factor holds. bfloat16 is the upper half of a float: panels take it in pairs, where the processor has
// instructions for them, or as floats.
enum class Paired : uint16_t {};
enum class Widened : uint16_t {};

// Elements to a word of 32 bits in a panel.
template <class T>
constexpr int64_t kPerWord = std::is_same_v<T, Paired> ? 2 : 1;

inline float word(float x) { return x; }
inline float word(Widened x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline __attribute__((always_inline, target("avx2"))) __m256 load_eight(const Widened* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline __attribute__((always_inline, target("avx2"))) __m128 load_four(const float* from) { return _mm_loadu_ps(from); }
inline __attribute__((always_inline, target("avx2"))) __m128 load_four(const Widened* from) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16));
}

// Each level has its tile, c[rows, kColumns] = a b + start from a panel of each (the product alone where `start` is
// null), and blocks whose sizes and order were measured. Panels hold words: a float, or a pair of bfloat16 that are
// neighbors in what is summed over. `k` and kDepth count words. Out is float, or bfloat16 as its bits.

// Of a, in words: panels, whose rows are neighbors, or a where it lies in memory, where rows or places are.
struct Left {
  const float* data;
  int64_t row, place;  // from one to the next in a tile
  int64_t tile;        // from one tile to the next, for each row
  // What will be read when all that is in the caches has been used: at each place the line at `ahead`, which goes on by
  // `advance`, is asked for into the second cache. Null: nothing.
  const float* ahead = nullptr;
  int64_t advance = 0;
};

// With 32 KiB, 512 KiB and a shared cache. One panel of b stays in the first, a block of a in the second.
template <class T>
struct Avx2 {
  using Element = T;
  static constexpr int kRows = 6, kLanes = 8, kColumns = 2 * kLanes;
  static constexpr int64_t kDepth = 384, kBlockRows = 48 * kRows, kBlockColumns = 48 * kColumns;
  static constexpr bool kAlongRows = false, kInPlace = false;

  AVX2_INLINE static void store(__m256 sums, float* to) { _mm256_storeu_ps(to, sums); }
  // Rounded to the nearest, ties to even; NaN stays NaN.
  AVX2_INLINE static void store(__m256 sums, uint16_t* to) {
    const __m256i bits = _mm256_castps_si256(sums),
                  odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(sums, sums, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7FC0), nan);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(halves));
  }

  template <int rows, int vectors, class Out>
  AVX2 static void tile(int64_t k, const Left& left, const float* b, const float* start, int64_t start_row, Out* c,
                        int64_t ld) {
    const float* a = left.data;
    __m256 sums[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sums[i][j] = _mm256_setzero_ps();
    for (int64_t p = 0; p < k; ++p, a += left.place, b += kColumns) {
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
        store(sums[i][j], c + i * ld + j * kLanes);
      }
    }
  }
};

// With 32 KiB, 1 MiB and a shared cache. One panel of a stays in the first, a block of b in the second.
template <class T>
struct Avx512 {
  using Element = T;
  static constexpr int kRows = 12, kLanes = 16, kColumns = 2 * kLanes;
  static constexpr int64_t kDepth = 384, kBlockRows = kRows, kBlockColumns = 12 * kColumns;
  static constexpr int64_t kAhead = 4 * kColumns;  // floats of b's panel that are asked for ahead of their use
  static constexpr bool kAlongRows = true, kInPlace = !std::is_same_v<T, Widened>;

  AVX512_INLINE static __m512 multiply_add(const float* x, __m512 right, __m512 sum) {
    if constexpr (std::is_same_v<T, Paired>) {
      int32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                              reinterpret_cast<__m512bh>(right));
    } else {
      return _mm512_fmadd_ps(_mm512_set1_ps(*x), right, sum);
    }
  }
  AVX512_INLINE static void store(__m512 sums, float* to) { _mm512_storeu_ps(to, sums); }
  // Without instructions for bfloat16 the rounding is that of Avx2.
  AVX512_INLINE static void store(__m512 sums, uint16_t* to) {
    __m256i halves;
    if constexpr (std::is_same_v<T, Paired>) {
      halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums));
    } else {
      typedef uint32_t Words __attribute__((vector_size(64)));
      typedef uint16_t Halves __attribute__((vector_size(32)));
      const Words bits = (Words)sums, rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
      halves = (__m256i) __builtin_convertvector(sums == sums ? rounded : 0x7FC0 + Words{}, Halves);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }

  // One place of what is summed over: a row of the panel of b by an element of each row of a, three of which lie `step`
  // apart from each of `thirds` on: no more addresses than there are registers.
  template <int rows, int vectors>
  AVX512_INLINE static void add_place(const float* row, const float* const (&thirds)[4], int64_t step,
                                      __m512 (&sums)[rows][vectors]) {
    __m512 right[vectors];
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      right[j] = _mm512_load_ps(row + j * kLanes);
      _mm_prefetch(row + kAhead + j * kLanes, _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sums[i][j] = multiply_add(thirds[i / 3] + i % 3 * step, right[j], sums[i][j]);
    }
  }

  template <int rows, int vectors, class Out>
  AVX512 static void tile(int64_t k, const Left& left, const float* b, const float* start, int64_t start_row, Out* c,
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
    const float *a = left.data, *ahead = left.ahead ? left.ahead : b;
    const int64_t advance = left.ahead ? left.advance : 0;
    if (const int64_t row = left.row; row != 1) {
      for (int64_t p = 0; p < k; ++p, ++a, b += kColumns, ahead += advance) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        add_place(b, {a, a + 3 * row, a + 6 * row, a + 9 * row}, row, sums);
      }
    } else {
      for (int64_t p = 0; p < k; ++p, a += left.place, b += kColumns, ahead += advance) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        add_place(b, {a, a + 3, a + 6, a + 9}, 1, sums);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) {
        if (start) sums[i][j] = _mm512_add_ps(sums[i][j], _mm512_loadu_ps(start + i * start_row + j * kLanes));
        store(sums[i][j], c + i * ld + j * kLanes);
      }
    }
  }
};

template <class Out>
using Tile = void (*)(int64_t, const Left&, const float*, const float*, int64_t, Out*, int64_t);

template <class Level, int vectors, class Out, int... less>
constexpr std::array<Tile<Out>, sizeof...(less)> tiles(std::integer_sequence<int, less...>) {
  return {Level::template tile<less + 1, vectors, Out>...};
}

// A tile whose columns are no whole vectors goes by way of one whose are.
template <class Level, class Out>
void tile(int64_t rows, int64_t columns, int64_t k, const Left& a, const float* b, const float* start,
          int64_t start_row, Out* c, int64_t ld) {
  constexpr auto heights = std::make_integer_sequence<int, Level::kRows>();
  static constexpr std::array by_size{tiles<Level, 1, Out>(heights), tiles<Level, 2, Out>(heights)};
  const int64_t width = columns <= Level::kLanes ? Level::kLanes : Level::kColumns;
  const Tile<Out> multiply = by_size[width / Level::kLanes - 1][rows - 1];
  if (columns == width) return multiply(k, a, b, start, start_row, c, ld);
  alignas(64) Out whole[Level::kRows * Level::kColumns];
  alignas(64) float first[Level::kRows * Level::kColumns] = {};
  if (start)
    for (int64_t i = 0; i < rows; ++i) std::copy_n(start + i * start_row, columns, first + i * width);
  multiply(k, a, b, start ? first : nullptr, width, whole, width);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(whole + i * width, columns, c + i * ld);
}

// to[p * width + i] = from(i, p), i < count, p < depth; zeros for the i up to `width`.
template <class T>
void pack_any(const Strided<T>& from, int64_t count, int64_t depth, int64_t width, float* to) {
  for (int64_t p = 0; p < depth; ++p, to += width) {
    for (int64_t i = 0; i < count; ++i) to[i] = word(from.data[i * from.row + p * from.column]);
    std::fill(to + count, to + width, 0.0f);
  }
}

// The same in pairs; an odd last element is paired with zero.
inline void pack_any(const Strided<Paired>& from, int64_t count, int64_t depth, int64_t width, float* to) {
  for (int64_t p = 0; p < depth; p += 2, to += width) {
    for (int64_t i = 0; i < count; ++i) {
      const Paired* x = from.data + i * from.row + p * from.column;
      const Paired pair[2] = {x[0], p + 1 < depth ? x[from.column] : Paired{0}};
      std::memcpy(to + i, pair, sizeof pair);
    }
    std::fill(to + count, to + width, 0.0f);
  }
}

// to[p * width + i] = from[i * step + p] for p < 4, i < count: 4, or 2.
template <int count, class T>
AVX2_INLINE void transpose_few(const T* from, int64_t step, float* to, int64_t width) {
  __m128 x0 = load_four(from), x1 = load_four(from + step);
  if constexpr (count == 4) {
    __m128 x2 = load_four(from + 2 * step), x3 = load_four(from + 3 * step);
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

// to[p * width + i] = from[i * step + p] for i < width; returns how many p < depth it did, the first ones.
template <int width, class T>
AVX2 int64_t transpose(const T* from, int64_t step, int64_t depth, float* to) {
  constexpr int eights = width / 8 * 8, fours = width / 4 * 4;
  int64_t p = 0;
  for (; p + 8 <= depth; p += 8) {
    const T* x = from + p;
    float* out = to + p * width;
    for (int i = 0; i < eights; i += 8) transpose_eight(x + i * step, step, out + i, width);
    for (int q = 0; q < 8 && eights < width; q += 4) {
      if constexpr (fours > eights) transpose_few<4>(x + eights * step + q, step, out + q * width + eights, width);
      if constexpr (width > fours) transpose_few<2>(x + fours * step + q, step, out + q * width + fours, width);
    }
  }
  return p;
}

// One panel of whole width from rows side by side in memory; what it returns counts elements.
template <int width, class T>
int64_t pack_rows(const Strided<T>& from, int64_t depth, float* to) {
  return from.column == 1 ? transpose<width>(from.data, from.row, depth, to) : 0;
}
template <int width>
int64_t pack_rows(const Strided<Paired>& from, int64_t depth, float* to) {
  if (from.column != 1 || from.row % 2 != 0) return 0;  // words as they are
  return 2 * transpose<width>(reinterpret_cast<const float*>(from.data), from.row / 2, depth / 2, to);
}

// The word of each of `width` lines at one place, where the lines lie across memory.
template <int width>
AVX2_INLINE void pack_across(const float* from, int64_t, float* to) {
  std::memcpy(to, from, width * sizeof(float));
}
template <int width>
AVX2_INLINE void pack_across(const Widened* from, int64_t, float* to) {
#pragma GCC unroll 4
  for (int i = 0; i + 8 <= width; i += 8) _mm256_storeu_ps(to + i, load_eight(from + i));
  if constexpr (width % 8 >= 4) _mm_storeu_ps(to + width / 8 * 8, load_four(from + width / 8 * 8));
  for (int i = width / 4 * 4; i < width; ++i) to[i] = word(from[i]);
}
template <int width>
AVX2_INLINE void pack_across(const Paired* even, int64_t step, float* to) {
  const Paired* odd = even + step;
#pragma GCC unroll 4
  for (int i = 0; i + 8 <= width; i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + i));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_unpacklo_epi16(x, y));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i + 4), _mm_unpackhi_epi16(x, y));
  }
  if constexpr (width % 8 == 4) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(even + width - 4));
    const __m128i y = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(odd + width - 4));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + width - 4), _mm_unpacklo_epi16(x, y));
  }
}

// One panel of whole width from lines across memory. Each place is on a page of its own, which no hardware asks for
// ahead.
template <int width, class T>
AVX2 int64_t pack_columns(const Strided<T>& from, int64_t depth, float* to) {
  constexpr int64_t per_word = kPerWord<T>, kAhead = 64, kLine = 64 / sizeof(T);
  int64_t p = 0;
  for (; p + per_word <= depth; p += per_word, to += width) {
    for (int64_t q = 0; q < per_word; ++q)
      for (int64_t i = 0; i < width; i += kLine)
        _mm_prefetch(from.from(i, std::min(p + q + kAhead, depth - 1)).data, _MM_HINT_T0);
    pack_across<width>(from.from(0, p).data, from.column, to);
  }
  return p;
}

// `lines` of `from`, `width` side by side in a panel; depth counts elements.
template <int width, class T>
void pack(const Strided<T>& from, int64_t lines, int64_t depth, float* to) {
  constexpr int64_t per_word = kPerWord<T>;
  for (int64_t i = 0; i < lines; i += width, to += (depth + per_word - 1) / per_word * width) {
    const Strided<T> panel = from.from(i, 0);
    const int64_t p = lines - i < width ? 0
                      : from.row == 1   ? pack_columns<width>(panel, depth, to)
                                        : pack_rows<width>(panel, depth, to);
    pack_any(panel.from(0, p), std::min<int64_t>(width, lines - i), depth - p, width, to + p / per_word * width);
  }
}

#undef AVX2
#undef AVX2_INLINE
#undef AVX512
#undef AVX512_INLINE

}  // namespace ortmodule
