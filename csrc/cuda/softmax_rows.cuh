// The two numbers of a row of scores that its softmax needs: the largest one, and the sum of exp(score - largest).
#pragma once

#include "cuda/rows.cuh"

namespace ortmodule::cuda {

struct SoftmaxSums {
  float largest, sum;
};

// A row that is held is gone over twice; one that is not is read once, with the sum corrected whenever a larger score
// turns up.
template <typename T, int N, int kThreads, int kHeld>
__device__ __forceinline__ SoftmaxSums softmax_sums(const Row<T, N, kThreads, kHeld>& row, int columns) {
  using Threads = Team<kThreads>;
  float largest = Maximum::kNothing, sum = 0;
  for_each_vector<N, kThreads, kHeld>(columns, [&](int v, int column) {
    float values[N];
    row.get(v, column, values);
    float now = largest;
#pragma unroll
    for (int k = 0; k < N; ++k) now = Maximum::of(now, values[k]);
    if constexpr (kHeld == 0) {
      if (now > Maximum::kNothing) {
        sum *= expf(largest - now);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += expf(values[k] - now);
      }
    }
    largest = now;
  });
  const float all = Threads::template reduce<Maximum>(largest);
  if constexpr (kHeld == 0) {
    if (largest > Maximum::kNothing) sum *= expf(largest - all);
    if (largest != largest) sum = largest;
  } else {
    for_each_vector<N, kThreads, kHeld>(columns, [&](int v, int column) {
      float values[N];
      row.get(v, column, values);
#pragma unroll
      for (int k = 0; k < N; ++k) sum += expf(values[k] - all);
    });
  }
  return {all, Threads::template reduce<Sum>(sum)};
}

}  // namespace ortmodule::cuda
