// What the CUDA kernels of the gradients' norm take (norm.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

enum class NormKind : int32_t { kOne, kTwo, kMost };  // of sizes, of squares, the largest size

// `tensors` gradients of one type, none of them empty; the arrays are the host's.
struct GradientLists {
  Element type;
  int64_t tensors;
  const int64_t* elements;
  void* const* gradients;
  int64_t chunk;  // elements of a block: norm_chunk(elements of all gradients of the norm)
};

// Elements of a block, so that there are few sums of blocks: every block that clips adds them all up.
inline int64_t norm_chunk(int64_t all) {
  constexpr int64_t kLeast = 16384, kBlocks = 2048, kStep = 2048;
  const int64_t wanted = (all + kBlocks - 1) / kBlocks;
  return wanted <= kLeast ? kLeast : (wanted + kStep - 1) / kStep * kStep;
}

// parts[i] = what the ith block of all lists adds up.
struct NormPartsLaunch {
  GradientLists lists;
  NormKind kind;
  float* parts;
};

// The norm that `count` parts make, in `to`.
struct NormLaunch {
  NormKind kind;
  int64_t count;
  const float* parts;
  float* to;
};

// Multiplies the gradients by min(1, max_norm / (norm + 1e-6)), and writes the norm where `norm.to` is one; without
// parts by `factor`.
struct ScaleLaunch {
  GradientLists lists;
  NormLaunch norm;
  float max_norm, factor;
};

}  // namespace ortmodule::cuda
