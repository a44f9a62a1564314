// What the CUDA kernels of layer and RMS normalization take (norm.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// y = (x - mean) * rstd * scale + bias of x[rows, columns]; with `root_mean_square` nothing is subtracted.
struct NormLaunch {
  Element type;  // of x, y, scale and bias
  int32_t root_mean_square;
  int64_t rows, columns;
  float epsilon;
  const void *x, *scale, *bias;  // bias may be null
  void *y, *mean, *rstd;         // float[rows]; mean is null for the root mean square
};

struct NormGradLaunch {
  Element type;  // of dy, x, scale and the gradients
  int32_t root_mean_square;
  int64_t rows, columns;
  const void *dy, *x, *scale, *mean, *rstd;
  void *dx, *dscale, *dbias;  // null where it is not wanted
  void* workspace;            // norm_workspace() floats, if dscale or dbias is wanted
};

// Floats of a workspace for so many rows: two sums for each column, in chunks of the rows.
inline int64_t norm_workspace(int64_t rows, int64_t columns) {
  const int64_t chunks = (rows + 63) / 64;
  return (chunks < 64 ? chunks : 64) * 2 * columns;
}

}  // namespace ortmodule::cuda
