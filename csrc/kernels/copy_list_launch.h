// What the CUDA kernel of copies takes (copy_list.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

// to[i] = from[i] for `tensors` tensors of `words[i]` words of 4 bytes each; the arrays are the host's. No memory that
// is written is read.
struct CopyListLaunch {
  int64_t tensors;
  const void* const* from;
  void* const* to;
  const int64_t* words;
};

}  // namespace ortmodule::cuda
