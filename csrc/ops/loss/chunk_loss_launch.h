// What the CUDA kernel of a chunk of LinearCrossEntropy takes (chunk_loss.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// Scores[rows, classes] become their gradient where it is wanted; the elements behind a row, up to a multiple of 16
// bytes, may be written.
struct ChunkLossLaunch {
  Element type;
  int64_t rows, classes, stride;  // elements from one row to the next
  int64_t ignore_index;
  void* scores;
  const void* labels;   // int64[rows]
  const void* weights;  // float[classes] or null
  const void* total;    // one float that gradients are divided by, or null
  void* losses;         // float[rows], not divided
  bool gradient;
};

}  // namespace ortmodule::cuda
