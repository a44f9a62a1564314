// What the CUDA kernel of CastAll takes (cast_all.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// to[i] = from[i] for `tensors` tensors of `elements[i]` elements each; the arrays are the host's.
struct CastAllLaunch {
  Element from_type, to_type;
  int64_t tensors;
  const void* const* from;
  void* const* to;
  const int64_t* elements;
};

}  // namespace ortmodule::cuda
