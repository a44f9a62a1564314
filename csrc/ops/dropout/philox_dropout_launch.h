// What the CUDA kernel of PhiloxDropout takes (philox_dropout.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

struct PhiloxDropoutLaunch {
  Element type;
  uint32_t threshold;  // an element whose word is below becomes 0
  float scale;         // of the others
  uint64_t seed, offset;
  int64_t count;
  const void* x;
  void* y;  // may be x
};

}  // namespace ortmodule::cuda
