// What the CUDA kernels of SoftmaxCrossEntropyLoss take (cross_entropy.cu); Note [Two numbers per row].
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

enum class Reduction : int32_t { kNone, kMean, kSum };

// Of scores[rows, classes]: labels int64[rows], weights[classes] of the scores' type or null.
struct LabelledScores {
  Element type;
  Reduction reduction;
  int64_t rows, classes, ignore_index;
  const void *scores, *labels, *weights;
};

struct CrossEntropyLaunch {
  LabelledScores given;
  void* loss;       // of the scores' type: one, or [rows] where nothing is reduced
  void* largest;    // float[rows]
  void* log_sum;    // float[rows]
  void* workspace;  // float[2, rows] where something is reduced: losses and weights of the rows
};

struct CrossEntropyGradLaunch {
  LabelledScores given;
  const void *dy, *largest, *log_sum;
  void* d_scores;   // may be the scores
  void* workspace;  // one float, for the mean: the total weight
};

}  // namespace ortmodule::cuda
