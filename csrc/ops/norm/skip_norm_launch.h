// What the CUDA kernel of normalized sums takes (skip_norm.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// Of s = x + skip + added, rows by columns: y = (s - mean) * rstd * scale + bias; with `root_mean_square` nothing is
// subtracted.
struct SkipNormLaunch {
  Element type;  // of all but the statistics
  int32_t root_mean_square;
  int64_t rows, columns;
  float epsilon;
  const void *x, *skip, *added, *scale, *bias;  // added[columns] and bias may be null
  void *y, *sum, *mean, *rstd;                  // y may be x; float[rows]; all but y may be null
};

}  // namespace ortmodule::cuda
