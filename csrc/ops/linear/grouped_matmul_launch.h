// What the CUDA kernels of GroupedMatMul take (grouped_matmul.cu).
#pragma once

#include "cuda/launch_table.h"

namespace ortmodule::cuda {

enum class GroupedForm : int32_t {
  kForward,  // to[rows, outer] = a[rows, inner] times b[group, inner, outer]
  kInput,    // to[rows, inner] = a[rows, outer] times b[group, inner, outer] transposed
  kWeight,   // to[group, inner, outer] = a[rows, inner] transposed times b[rows, outer], over the group's rows
};

// Group g has the rows from ends[g - 1] to ends[g]; rows behind the last end become zero.
struct GroupedMatMulLaunch {
  Element type;
  GroupedForm form;
  int64_t rows, inner, outer, groups;
  const int64_t* ends;  // on the device
  const void *a, *b;
  int64_t strides[3];  // of b[group, inner, outer], in elements
  void* to;
};

}  // namespace ortmodule::cuda
