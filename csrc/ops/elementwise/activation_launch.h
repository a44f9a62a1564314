// What the CUDA kernels of activations take (activation.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

enum class Activation : int32_t { kGelu, kGeluTanh, kSilu, kQuickGelu, kTanh, kSigmoid };

struct ActivationLaunch {
  Element type;
  Activation kind;
  int64_t count;
  float alpha;  // of QuickGelu
  const void* x;
  void* y;  // may be x
};

// Gelu and GeluTanh of x[.., columns] + bias[columns].
struct BiasedActivationLaunch {
  Element type;
  Activation kind;
  int64_t count, columns;
  const void *x, *bias;
  void* y;  // may be x
};

struct ActivationGradLaunch {
  Element type;
  Activation kind;
  int64_t count;
  float alpha;
  const void *dy, *saved;  // the input; Tanh and Sigmoid: the output
  void* dx;                // may be dy
};

}  // namespace ortmodule::cuda
