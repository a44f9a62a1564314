// Products of small fp32 or bfloat16 matrices that fit the caches, for kernels that work tile by tile (attention).
//
// Why not the BLAS: on tiles of this size its call and its packing cost a fifth, it packs the same operand again at
// every call, and on some processors it uses half of the vector width. Here the right operand is transposed
// once, by the caller, or read in place; the left one is read in place through any two strides.
// Large products are the BLAS's.
#pragma once

#include <cstdint>

namespace ortmodule {

// Columns of a panel: 8, 16 or 32, a constant of the machine.
int64_t panel_width();

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The right operand b[k, n]: row p of panel j, which holds the columns from j * width on, is at
// data + j * panel + p * row. A matrix in memory with whole panels is one as it stands: see in_rows.
struct Panels {
  const float* data;
  int64_t panel, row;

  // A matrix whose rows are `ld` floats apart and have room for n rounded up to the width.
  static Panels in_rows(const float* data, int64_t ld) { return {data, panel_width(), ld}; }
  Panels from_row(int64_t p) const { return {data + p * row, panel, row}; }
  Panels from_column(int64_t column) const { return {data + column / panel_width() * panel, panel, row}; }
};

// Packs b = rows^T from `count` rows of `size` floats each, `step` floats apart; they become the columns from `first`
// on, a multiple of the width. Panels are `size` * width floats each; the last is filled up with zeros.
void pack_columns(float* panels, int64_t first, const float* rows, int64_t step, int64_t count, int64_t size);
inline Panels packed(const float* panels, int64_t size) { return {panels, size * panel_width(), panel_width()}; }

// c[m, n] = a b, or c += a b. a(i, p) is a[i * row + p * column]. c's rows are `ld` floats apart and have room for n
// rounded up to the width: columns beyond n are written too.
struct LeftOperand {
  const float* data;
  int64_t row, column;
};

// What of a product is needed where one matrix of it is a triangle: elements (i, j) with j <= i + diagonal.
struct Triangle {
  enum Matrix { kResult, kLeft, kLeftTransposed } matrix = kResult;  // the others of a left operand are zero
  int64_t diagonal = int64_t{1} << 32;                               // all of it
};

void tile_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add, const Triangle& triangle = {});

// The same for bfloat16, on a processor with has_pairs() of processor.h, twice as many to an instruction: each "float"
// of a and of b stands for two neighbors in what is summed over, the first in its low half, and k counts pairs. Sums
// are fp32.
void pair_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add, const Triangle& triangle = {});
// Pairs of the neighbors in a row of n floats, and of two rows, of which there may be no odd one; zero fills up the
// last. Rounded to the nearest; denormal numbers become zero.
void round_to_pairs(const float* row, int64_t n, float* out);
void round_to_pairs(const float* even, const float* odd, int64_t n, float* out);

}  // namespace ortmodule
