// Layer normalisation of rows of floats on the CPU. Only *_kernel.cpp files include this header.
//
// ATen's kernels are compiled for AVX2 and take some 50 ns a row before its elements, which is most of the time of the
// narrow rows of small models.
#pragma once

#include <cstdint>

namespace ortmodule {

// Longer rows want sums that are taken in more steps than one: ATen's.
constexpr int64_t kLongestNormRow = 1 << 14;
constexpr int64_t kNormGrain = 1 << 12;  // elements that are worth a thread: some microseconds

struct NormRows {
  const float *x, *scale;
  int64_t rows, width;
};

// y = (x - mean) * inv_std * scale + bias, by rows; bias may be null. The variance is of the differences from the mean.
void normalize_rows(const NormRows& of, const float* bias, double epsilon, float* y, float* mean, float* inv_std);

// The same of rows [begin, end) on this thread; y may be x.
void normalize_row_range(const NormRows& of, const float* bias, double epsilon, float* y, float* mean, float* inv_std,
                         int64_t begin, int64_t end);

// y = x / sqrt(mean(x^2) + epsilon) * scale of one row of n elements; y may be x.
void scale_row_by_rms(const float* x, const float* scale, int64_t n, double epsilon, float* y, float* inv_rms);

// Null where a gradient is not wanted; dscale and dbias go together.
struct NormGradients {
  float *dx, *dscale, *dbias;
};

// Sums over rows are taken by as many chunks as there are threads, and added in order.
void normalize_rows_grad(const NormRows& of, const float* dy, const float* mean, const float* inv_std,
                         const NormGradients& to);

}  // namespace ortmodule
