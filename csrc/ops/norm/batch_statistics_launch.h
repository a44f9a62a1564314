// What the CUDA kernels of a batch's statistics take (batch_statistics.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// Of x[rows, channels]: mean and 1 / sqrt(var + epsilon) per channel, `factor` and `shift` with which x * factor +
// shift is the normalized x times scale plus bias, and running statistics moved by `momentum` towards the batch's.
struct BatchStatisticsLaunch {
  Element type, numbers;  // of x; of scale, bias and the running statistics
  int64_t rows, channels;
  float epsilon, momentum;
  const void *x, *scale, *bias, *running_mean, *running_var;
  void *mean, *invstd, *factor, *shift;  // float[channels]
  void *new_mean, *new_var;              // null where they are not wanted
  void* workspace;                       // batch_workspace() floats
};

// Of dy and x[rows, channels]: the gradients of scale and bias, and three numbers per channel with which dy *
// dy_factor + x * x_factor + shift is the gradient of x. With `factor`, dy counts where x * factor + y_shift > 0.
struct BatchSumsLaunch {
  Element type, numbers;  // of dy and x; of scale, dscale and dbias
  int64_t rows, channels;
  const void *dy, *x, *scale, *mean, *invstd;
  const void *factor, *y_shift;        // float[channels], or null
  void *dscale, *dbias;                // null where they are not wanted
  void *dy_factor, *x_factor, *shift;  // float[channels]
  void* workspace;
};

// Blocks' shares of the rows: so many that all of a GPU's processors have some.
inline int64_t batch_chunks(int64_t rows, int64_t channels) {
  const int64_t tiles = (channels + 127) / 128, most = tiles < 512 ? 512 / tiles : 1, worth = (rows + 63) / 64;
  return worth < most ? worth : most;
}

// Two sums per channel and chunk.
inline int64_t batch_workspace(int64_t rows, int64_t channels) { return 2 * batch_chunks(rows, channels) * channels; }

}  // namespace ortmodule::cuda
