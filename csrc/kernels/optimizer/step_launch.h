// What the CUDA kernels of optimizers' steps take (step.cu, lamb.cu): lists of tensors, and a rule's numbers.
//
// The arrays are the host's, the addresses in them the device's. Not here: whose numbers these are (sgd.cpp, adam.cpp,
// lamb.cpp).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

constexpr int kListedStates = 3;

// `tensors` parameters whose tensors have the same types: those of 16 bits alone, or floats with gradients of any
// type. Copies are of `copy_type`, which is one of 16 bits.
struct StepLists {
  Element parameter_type, gradient_type, copy_type;
  int64_t tensors;
  const int64_t* elements;
  void* const* parameters;
  void* const* gradients;
  void* const* copies;                 // each may be null
  void* const* states[kListedStates];  // of the parameter's type; null: the rule has none
  const float* divisor;                // on the device: gradients are divided by it first; null: by nothing
  const float* found_inf;              // on the device: unless it is 0 nothing is done; null: it is done
  bool written;                        // the divided gradients take the place of the given ones
};

struct SgdNumbers {
  float factor, decay, momentum, rest, rate;  // rest: 1 - dampening; rate: the negative one
  bool first, nesterov;                       // first: the momentum begins
};

struct SgdLaunch {
  StepLists lists;
  SgdNumbers numbers;
};

struct MomentNumbers {
  float factor, l2, weight1, rest1, beta2, weight2;
};

struct AdamNumbers {
  MomentNumbers moments;
  float before, divisor, epsilon, length, after;
};

struct AdamLaunch {
  StepLists lists;
  AdamNumbers numbers;
  const float* corrections;  // on the device, for each tensor `divisor` and `length`; null: those of the numbers
};

struct LambNumbers {
  MomentNumbers moments;
  float scale1, scale2, epsilon, decay;
  double rate, ratio_min, ratio_max;  // rate: the negative one
};

struct LambLaunch {
  StepLists lists;
  LambNumbers numbers;
  const float* corrections;  // `scale1` and `scale2`
  float* parts;              // a workspace of two floats for each block of all tensors
};

// Elements of a block, so that a tensor has no more sums of blocks than a block adds up in passing.
inline int64_t lamb_chunk(int64_t largest) {
  constexpr int64_t kLeast = 16384, kBlocks = 2048, kStep = 2048;
  const int64_t wanted = (largest + kBlocks - 1) / kBlocks;
  return wanted <= kLeast ? kLeast : (wanted + kStep - 1) / kStep * kStep;
}

// Steps that the device counts: each is one more, unless found_inf, and corrections[2 * i] and [2 * i + 1] are what
// bias correction makes of it, for Adam (`decay` as adam.cpp has it) or for LAMB.
struct StepsLaunch {
  int64_t tensors;
  float* const* steps;
  const float* found_inf;
  float* corrections;
  double rate, beta1, beta2;
  int32_t decay;  // kLambCorrections: LAMB's
  bool correct_bias;
};
constexpr int32_t kLambCorrections = -1;

}  // namespace ortmodule::cuda
