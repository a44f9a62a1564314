// What the CUDA kernel of AddAll takes (add_all.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// to[i] = from[i] + value for `tensors` tensors of int64 with `elements[i]` elements each; the arrays are the host's.
struct AddAllLaunch {
  int64_t tensors, value;
  const void* const* from;
  void* const* to;
  const int64_t* elements;
};

}  // namespace ortmodule::cuda
