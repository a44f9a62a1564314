// What the CUDA kernel of RotaryEmbedding takes (rotary.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// (y1, y2) = (x1 cos - x2 sin, x2 cos + x1 sin) of the halves of each head. Heads are x[batch, outer, inner, 2 * half]:
// tokens and heads in the order that they have in memory. Distances are in elements, the same in x and y.
struct RotaryLaunch {
  Element type;
  int64_t batch, outer, inner, half;
  int64_t by_batch, by_outer, by_inner;                    // of x and y
  int64_t cache_by_batch, cache_by_outer, cache_by_inner;  // of the caches; 0: the same numbers
  const void *x, *cos, *sin;
  void* y;  // may be x
};

}  // namespace ortmodule::cuda
