// The instructions of a fused program on one tile, compiled for each instruction-set level and chosen when the library
// loads. Not here: what tiles are and where operands come from (fused_kernel.cpp).
#pragma once

#include <cstdint>

#include "records/fused_program.h"

namespace ortmodule {

// Elements in memory, or one number that stands for all of them.
struct TileOperand {
  const float* data;
  bool single;
};

// d[i] = op(x[i], y[i], z[i]) for i < n. d may be an operand's memory. Operands that the instruction lacks are not
// read.
using TileFn = void (*)(float* d, TileOperand x, TileOperand y, TileOperand z, int64_t n);

// How the second of two instructions in one takes what the first gives, with z as its other operand.
enum class Second { kAdd, kSub, kSubFrom, kMul };

struct TileOps {
  TileFn of[static_cast<size_t>(Opcode::kCount)];  // null: no instruction on elements alone
  // By the first instruction, x add, sub or mul y, and the second: one loop for both.
  TileFn pair[3][4];
  // Rows of `width` floats, which is even: see Opcode::kRotateHalf. d may be x.
  void (*rotate)(float* d, const float* x, int64_t rows, int64_t width);
  float (*sum)(const float* x, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
};

const TileOps& tile_ops();

}  // namespace ortmodule
