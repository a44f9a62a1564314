// The instructions of a fused program on one tile, compiled for each instruction-set level and chosen when the library
// loads. Not here: what tiles are and where operands come from (fused_kernel.cpp).
#pragma once

#include <cstdint>

#include "ops/fused_program.h"

namespace ortmodule {

// Elements in memory, or one number that stands for all of them.
struct TileOperand {
  const float* data;
  bool single;
};

// d[i] = op(x[i], y[i], z[i]) for i < n. d may be an operand's memory. Operands that the instruction lacks are not read.
using TileFn = void (*)(float* d, TileOperand x, TileOperand y, TileOperand z, int64_t n);

struct TileOps {
  TileFn of[static_cast<size_t>(Opcode::kCount)];  // null: no instruction on elements alone
  float (*sum)(const float* x, int64_t n);
};

const TileOps& tile_ops();

}  // namespace ortmodule
