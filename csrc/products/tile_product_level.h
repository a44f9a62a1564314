// The register-tiled loop of tile_product, included once per instruction-set level by tile_product_kernel.cpp, which
// sets LEVEL (a namespace), LEVEL_TARGET (a function attribute), LEVEL_BYTES (of a vector) and LEVEL_ROWS. LEVEL_PAIRS
// is set where the elements are pairs of bfloat16, whose bits must not go through float arithmetic.
//
// LEVEL_ROWS x 2 accumulators, two vectors of b and one broadcast element of a fill the register file. Vector types
// want the target on every function that names them: the compiler splits vectors before it inlines.
// No include guard: it is meant to be included more than once.

namespace ortmodule::LEVEL {

typedef float Vector __attribute__((vector_size(LEVEL_BYTES)));
typedef float Loose __attribute__((vector_size(LEVEL_BYTES), aligned(4), may_alias));  // in memory, at any address
constexpr int64_t kLanes = LEVEL_BYTES / 4, kWidth = 2 * kLanes;

#ifdef LEVEL_PAIRS
constexpr int64_t kSummands = 2;  // to the room of a float
typedef int32_t Pair __attribute__((may_alias));
LEVEL_TARGET inline Vector spread(const float* x) {
  return (Vector)_mm512_set1_epi32(*reinterpret_cast<const Pair*>(x));
}
LEVEL_TARGET inline Vector multiply_add(Vector x, Vector b, Vector sum) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)b);
}
#else
constexpr int64_t kSummands = 1;
LEVEL_TARGET inline Vector spread(const float* x) { return *x - Vector{}; }
LEVEL_TARGET inline Vector multiply_add(Vector x, Vector b, Vector sum) { return sum + x * b; }
#endif

template <int rows, int vectors, bool add>
LEVEL_TARGET void strip(int64_t k, const LeftOperand& left, const float* b, int64_t b_row, float* c, int64_t ld) {
  const float* a = left.data;
  const int64_t row = left.row, column = left.column;
  Vector sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    sums[i][0] = Vector{};
    sums[i][vectors - 1] = Vector{};
  }
  const float *a4 = a + 4 * row, *a8 = a + 8 * row;
  const int64_t third = 3 * row;
  for (int64_t p = 0; p < k; ++p, b += b_row) {
    const Vector b0 = *reinterpret_cast<const Loose*>(b);
    const Vector b1 = vectors == 2 ? *reinterpret_cast<const Loose*>(b + kLanes) : b0;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const float* group = i < 4 ? a : i < 8 ? a4 : a8;
      const Vector x = spread(group + (i % 4 == 3 ? third : i % 4 * row));
      sums[i][0] = multiply_add(x, b0, sums[i][0]);
      if constexpr (vectors == 2) sums[i][1] = multiply_add(x, b1, sums[i][1]);
    }
    a += column, a4 += column, a8 += column;
    asm("" : "+r"(a), "+r"(a4), "+r"(a8));  // else an offset per row, and some in vector registers: a twentieth slower
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    // No auto: it would drop the alignment of the type.
    Loose* out = reinterpret_cast<Loose*>(c + i * ld);
    *out = add ? *out + sums[i][0] : sums[i][0];
    if constexpr (vectors == 2) {
      Loose* next = reinterpret_cast<Loose*>(c + i * ld + kLanes);
      *next = add ? *next + sums[i][1] : sums[i][1];
    }
  }
}

using Strip = void (*)(int64_t, const LeftOperand&, const float*, int64_t, float*, int64_t);

template <int vectors, bool add, int... less>
constexpr std::array<Strip, sizeof...(less)> strips(std::integer_sequence<int, less...>) {
  return {strip<less + 1, vectors, add>...};
}

template <bool add>
void product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
             const Triangle& triangle) {
  constexpr auto heights = std::make_integer_sequence<int, LEVEL_ROWS>();
  static constexpr std::array<Strip, LEVEL_ROWS> by_rows[2] = {strips<1, add>(heights), strips<2, add>(heights)};
  const float* panel = b.data;
  for (int64_t j = 0; j < n; j += kWidth, panel += b.panel) {
    for (int64_t i = 0; i < m; i += LEVEL_ROWS) {
      const int64_t rows = m - i < LEVEL_ROWS ? m - i : LEVEL_ROWS, end = i + rows + triangle.diagonal;
      int64_t first = 0, last = k, columns = n - j;
      if (triangle.matrix == Triangle::kResult) {
        columns = std::min(columns, end - j);
      } else if (triangle.matrix == Triangle::kLeft) {
        last = std::clamp<int64_t>((end + kSummands - 1) / kSummands, 0, k);
      } else {
        first = std::clamp<int64_t>((i - triangle.diagonal) / kSummands, 0, k);
      }
      if (columns <= 0) continue;
      by_rows[columns > kLanes][rows - 1](last - first, {a.data + i * a.row + first * a.column, a.row, a.column},
                                          panel + first * b.row, b.row, c + i * ld + j, ld);
    }
  }
}

constexpr Level kLevel{kWidth, product<false>, product<true>};

}  // namespace ortmodule::LEVEL

#undef LEVEL
#undef LEVEL_TARGET
#undef LEVEL_BYTES
#undef LEVEL_ROWS
#undef LEVEL_PAIRS
