// What generated kernels call: a function for each instruction of a program (records/fused_program.h), and the factors
// of counter-based dropout.
//
// ops/fused/cuda_source.cpp writes such kernels. Formulas are those of the CPU's interpreter
// (ops/fused/tile_ops_level.h). Not here: how elements are found and who computes them.
#pragma once

#ifndef __CUDACC__
#include "cuda/generated.h"
#endif
#include "cuda/elements.cuh"
#include "cuda/philox.cuh"
#include "cuda/reduce.cuh"

namespace ortmodule::cuda {

// What a generated kernel reads and writes are different memory, so that it may read ahead of what it writes.
#ifdef __CUDACC__
#define ORTMODULE_APART __restrict__
#else
#define ORTMODULE_APART
#endif

// The numbers of a launch: sizes with their dividers, strides, states of random streams.
template <int count>
struct Numbers {
  int64_t at[count];
};

// n / size for 0 <= n < 2^31 by a product, where `divider` is divider_of(size): a division takes a GPU ten times as
// long. (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.)
__device__ __forceinline__ int divided(int n, int64_t divider) {
  const auto number = static_cast<uint32_t>(n);
  return static_cast<int>((__umulhi(number, static_cast<uint32_t>(divider)) + number) >> (divider >> 32));
}

namespace generated {

#define ORTMODULE_OPERATION(name, ...) __device__ __forceinline__ float name(__VA_ARGS__)

constexpr float kRootOfHalf = 0.70710678118654752f, kTanhScale = 0.79788456080286536f, kCubic = 0.044715f;
constexpr float kBellHeight = 0.39894228040143268f;

ORTMODULE_OPERATION(op_add, float x, float y) { return x + y; }
ORTMODULE_OPERATION(op_sub, float x, float y) { return x - y; }
ORTMODULE_OPERATION(op_mul, float x, float y) { return x * y; }
ORTMODULE_OPERATION(op_div, float x, float y) { return x / y; }
// NaN wins.
ORTMODULE_OPERATION(op_min, float x, float y) { return x != x ? x : (y < x || y != y ? y : x); }
ORTMODULE_OPERATION(op_max, float x, float y) { return x != x ? x : (y > x || y != y ? y : x); }
ORTMODULE_OPERATION(op_less, float x, float y) { return x < y ? 1.0f : 0.0f; }
ORTMODULE_OPERATION(op_less_equal, float x, float y) { return x <= y ? 1.0f : 0.0f; }
ORTMODULE_OPERATION(op_greater, float x, float y) { return x > y ? 1.0f : 0.0f; }
ORTMODULE_OPERATION(op_greater_equal, float x, float y) { return x >= y ? 1.0f : 0.0f; }
ORTMODULE_OPERATION(op_equal, float x, float y) { return x == y ? 1.0f : 0.0f; }
// Operands are 0 or 1.
ORTMODULE_OPERATION(op_and, float x, float y) { return x * y; }
ORTMODULE_OPERATION(op_or, float x, float y) { return op_max(x, y); }
ORTMODULE_OPERATION(op_xor, float x, float y) { return x != y ? 1.0f : 0.0f; }
ORTMODULE_OPERATION(op_where, float c, float x, float y) { return c != 0.0f ? x : y; }
ORTMODULE_OPERATION(op_not, float x) { return 1.0f - x; }
ORTMODULE_OPERATION(op_neg, float x) { return -x; }
ORTMODULE_OPERATION(op_abs, float x) { return fabsf(x); }
ORTMODULE_OPERATION(op_sqrt, float x) { return sqrtf(x); }
ORTMODULE_OPERATION(op_rsqrt, float x) { return rsqrtf(x); }
ORTMODULE_OPERATION(op_reciprocal, float x) { return 1.0f / x; }
ORTMODULE_OPERATION(op_exp, float x) { return expf(x); }
ORTMODULE_OPERATION(op_log, float x) { return logf(x); }
ORTMODULE_OPERATION(op_tanh, float x) { return tanhf(x); }
ORTMODULE_OPERATION(op_erf, float x) { return erff(x); }
ORTMODULE_OPERATION(op_sigmoid, float x) { return 1.0f / (1.0f + expf(-x)); }
ORTMODULE_OPERATION(op_relu, float x) { return x < 0.0f ? 0.0f : x; }
ORTMODULE_OPERATION(op_gelu, float x) { return x * 0.5f * (1.0f + erff(x * kRootOfHalf)); }
ORTMODULE_OPERATION(op_gelu_tanh, float x) {
  return 0.5f * x * (1.0f + tanhf(kTanhScale * (x + kCubic * (x * x * x))));
}
ORTMODULE_OPERATION(op_silu, float x) { return x / (1.0f + expf(-x)); }
ORTMODULE_OPERATION(op_gelu_grad, float dy, float x) {
  const float cdf = 0.5f * (1.0f + erff(x * kRootOfHalf));
  return dy * (cdf + x * (expf(x * x * -0.5f) * kBellHeight));
}
ORTMODULE_OPERATION(op_gelu_tanh_grad, float dy, float x) {
  const float square = x * x, t = tanhf(kTanhScale * (x + kCubic * (square * x)));
  const float inner = kTanhScale * (1.0f + 3.0f * kCubic * square);
  return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
}
ORTMODULE_OPERATION(op_silu_grad, float dy, float x) {
  const float s = op_sigmoid(x);
  return dy * s * (1.0f + x * (1.0f - s));
}
ORTMODULE_OPERATION(op_tanh_grad, float dy, float y) { return dy * (1.0f - y * y); }
ORTMODULE_OPERATION(op_sigmoid_grad, float dy, float y) { return dy * y * (1.0f - y); }
ORTMODULE_OPERATION(op_round_bfloat16, float x) { return to_float(from_float<BFloat16>(x)); }
ORTMODULE_OPERATION(op_round_half, float x) { return to_float(from_float<Half>(x)); }

#undef ORTMODULE_OPERATION

struct Drop {
  uint32_t threshold;
  float scale;
  __device__ __forceinline__ float factor(uint32_t word) const { return word >= threshold ? scale : 0.0f; }
};

// The factors of N elements side by side from `first` on, where the warp has 32 * N of them from a multiple of 64 on.
// All of the warp's threads call it; `words` is the block's shared memory.
template <int N, typename Words>
__device__ __forceinline__ void drop_factors(PhiloxKey key, Drop drop, int64_t first, Words& words, float (&to)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int base = warp * kWarpSize * N;
  __syncwarp();  // those who read the last words are done
  philox_words<N>(key, first - lane * N, lane, words, base);
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = drop.factor(words[base + lane * N + k]);
}

// The factor of any element: four times the work.
__device__ __forceinline__ float drop_factor(PhiloxKey key, Drop drop, int64_t element) {
  uint32_t words[4];
  const int64_t block = element / kPhiloxElements;
  const int place = static_cast<int>(element % kPhiloxElements);
  philox(key, static_cast<uint64_t>(block * kPhiloxCounters + place % kPhiloxCounters), words);
  const int word = place / kPhiloxCounters;
  return drop.factor(word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3]);
}

// The first warp has the sums over the block's 4 warps then, in their order. All of the block's threads call it.
template <int N>
__device__ __forceinline__ void add_warps(float (&sums)[N]) {
  constexpr int kWarps = 4;
  ORTMODULE_SHARED(float, tile, (kWarps - 1) * N * kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  __syncthreads();  // those who read the last sums are done
  if (warp > 0) {
#pragma unroll
    for (int k = 0; k < N; ++k) tile[((warp - 1) * N + k) * kWarpSize + lane] = sums[k];
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int other = 0; other < kWarps - 1; ++other)
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += tile[(other * N + k) * kWarpSize + lane];
}

// Adds up what `teams` blocks have found for each of `width` columns: parts[team * stride + column]. 32 columns a
// block, 32 threads beside one another for each of its lines.
constexpr int kTotalLines = 32;
template <typename T>
__device__ __forceinline__ void add_column_parts(Global<const float> parts, Global<T> to, int teams, int64_t stride,
                                                 int64_t width) {
  constexpr int kLines = kTotalLines;
  ORTMODULE_SHARED(float, sums, kLines* kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, line = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t column = int64_t{blockIdx.x} * kWarpSize + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int team = line; team < teams; team += kLines) sum += load(parts, team * stride + column);
  }
  sums[line * kWarpSize + lane] = sum;
  __syncthreads();
  if (line != 0 || column >= width) return;
  float total = 0;
#pragma unroll
  for (int other = 0; other < kLines; ++other) total += sums[other * kWarpSize + lane];
  store(to, column, from_float<T>(total));
}

}  // namespace generated
}  // namespace ortmodule::cuda
