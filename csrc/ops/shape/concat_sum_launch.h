// What the CUDA kernels of ConcatSum take (concat_sum.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

constexpr int kConcatParts = 4;

// y[rows, columns] of parts [rows, widths[k]] side by side, and the sums over its rows.
struct ConcatSumLaunch {
  Element type;
  int32_t wide;  // the sums are floats
  int64_t rows, columns;
  const void* parts[kConcatParts];  // null behind the last
  int64_t widths[kConcatParts];     // 0 there
  void *y, *sums;
  void* workspace;  // concat_sum_workspace() floats
};

inline int64_t concat_sum_workspace(int64_t rows, int64_t columns) {
  const int64_t chunks = (rows + 63) / 64;
  return (chunks < 64 ? chunks : 64) * columns;
}

}  // namespace ortmodule::cuda
