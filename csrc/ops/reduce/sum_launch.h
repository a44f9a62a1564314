// What the CUDA kernels of sums take (sum.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// Sums of x[rows, columns]: over the columns into y[rows], times `scale`; or over the rows into y[columns].
struct SumLaunch {
  Element type;
  int32_t over_rows;
  int64_t rows, columns;
  float scale;  // of sums over columns
  const void* x;
  void* y;
  void* workspace;  // sum_workspace() floats
};

constexpr int64_t kSumPart = 1 << 14;  // columns that one block adds

inline int64_t sum_workspace(bool over_rows, int64_t rows, int64_t columns) {
  if (!over_rows) return columns > kSumPart ? rows * ((columns + kSumPart - 1) / kSumPart) : 0;
  const int64_t chunks = (rows + 63) / 64;
  return (chunks < 64 ? chunks : 64) * columns;
}

}  // namespace ortmodule::cuda
