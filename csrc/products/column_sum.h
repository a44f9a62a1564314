// The sum over the rows of a matrix: what a bias's gradient is.
//
// at::sum finds out about types, layouts and the shape of the result for a microsecond before it adds; for the few rows
// of a small layer that is most of its time. Here small float matrices on the CPU are summed at once, in the order in
// which at::sum adds, so that the bits are the same. Only *_kernel.cpp files include this header.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// rows [M, N] summed to [N]; at::sum(rows, 0) for whatever is not small, float and on the CPU.
at::Tensor column_sum(const at::Tensor& rows);
// The same for `columns` columns of a matrix whose rows lie `stride` floats apart, on this thread. Columns from a
// multiple of 32 on have the bits that they have in the whole matrix.
void column_sums(const float* data, int64_t rows, int64_t stride, int64_t columns, float* sums);

}  // namespace ortmodule
