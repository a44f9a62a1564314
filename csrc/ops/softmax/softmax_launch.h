// What the CUDA kernels of Softmax, LogSoftmax and their gradients take (softmax.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// Over the columns of x[rows, columns].
struct SoftmaxLaunch {
  Element type;
  int32_t log;
  int64_t rows, columns;
  const void* x;
  void* y;  // may be x
};

struct SoftmaxGradLaunch {
  Element type;
  int32_t log;
  int64_t rows, columns;
  const void *dy, *y;
  void* dx;  // may be dy
};

}  // namespace ortmodule::cuda
