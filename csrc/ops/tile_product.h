// Products of small fp32 matrices that fit the caches, for kernels that work tile by tile (attention).
//
// Why not the BLAS: on tiles of this size its call and its packing cost a fifth, it packs the same operand again at
// every call, and on some processors it uses half of the vector width. Here the right operand is packed once, by the
// caller; the left one is read in place through any two strides, so that a transpose is free.
// Large products are the BLAS's.
#pragma once

#include <cstdint>

namespace ortmodule {

// Columns of a panel: 8, 16 or 32, a constant of the machine.
int64_t panel_width();

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The right operand b[k, n] as panels: panel p holds the columns from p * width, row behind row, `stride` floats after
// panel p - 1. Columns beyond n are zero.
struct Panels {
  float* data;
  int64_t stride;  // at least k * width
  // The same columns from row `row` on.
  Panels from_row(int64_t row) const { return {data + row * panel_width(), stride}; }
};

// Packs one row of b, or one column (the row of a transposed operand).
void pack_row(const Panels& panels, int64_t row, const float* values, int64_t n);
// Packs b = rows^T from `count` rows of `size` floats each, `step` floats apart; they become the columns from `first`
// on, a multiple of the width. The last panel is filled up with zeros.
void pack_columns(const Panels& panels, int64_t first, const float* rows, int64_t step, int64_t count, int64_t size);

// c[m, n] = a b, or c += a b. a(i, p) is a[i * row + p * column]. c's rows are `ld` floats apart and have room for n
// rounded up to the width: columns beyond n are written too.
struct LeftOperand {
  const float* data;
  int64_t row, column;
};
void tile_product(int64_t m, int64_t n, int64_t k, const LeftOperand& a, const Panels& b, float* c, int64_t ld,
                  bool add);

}  // namespace ortmodule
