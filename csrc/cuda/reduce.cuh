// Sums and maxima over the threads of a warp or of a block; every thread gets the result, in the same bits at each run.
#pragma once

#include "cuda/kernel.cuh"

namespace ortmodule::cuda {

struct Sum {
  template <typename T>
  __device__ __forceinline__ static T of(T a, T b) {
    return a + b;
  }
  static constexpr float kNothing = 0.0f;
};
struct Maximum {
  // NaN wins, as in torch.
  template <typename T>
  __device__ __forceinline__ static T of(T a, T b) {
    return a > b || a != a ? a : b;
  }
  static constexpr float kNothing = __builtin_bit_cast(float, 0xff800000u);
};

template <typename Operation, typename T>
__device__ __forceinline__ T reduce_warp(T value) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2)
    value = Operation::of(value, __shfl_xor_sync(~0u, value, lanes));
  return value;
}

// Threads that have a row together: one warp of a block that has several, or the whole block.
template <int kThreads>
struct Team {
  static constexpr int kPerBlock = kThreads == kWarpSize ? 4 : 1;
  static constexpr int kBlockThreads = kThreads * kPerBlock;
  static constexpr int kWarps = kThreads / kWarpSize;

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ __forceinline__ static int64_t row() {
    return int64_t{blockIdx.x} * kPerBlock + static_cast<int>(threadIdx.x) / kThreads;
  }

  // Two values at once take as many barriers as one.
  template <typename Operation, typename T, int N>
  __device__ __forceinline__ static void reduce(T (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = reduce_warp<Operation>(values[k]);
    if constexpr (kWarps > 1) {
      ORTMODULE_SHARED(T, parts, N * kWarps);
      const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
      __syncthreads();  // those who read the last reduction's are done
      if (lane == 0) {
#pragma unroll
        for (int k = 0; k < N; ++k) parts[k * kWarps + warp] = values[k];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < N; ++k) {
        values[k] = parts[k * kWarps];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) values[k] = Operation::template of<T>(values[k], parts[k * kWarps + w]);
      }
    }
  }

  template <typename Operation>
  __device__ __forceinline__ static float reduce(float value) {
    float values[1] = {value};
    reduce<Operation>(values);
    return values[0];
  }
};

}  // namespace ortmodule::cuda
