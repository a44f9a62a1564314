// The words of CUDA that kernels use, for the host's compiler. What they may use beside them is in csrc/cuda/*.cuh.
#pragma once

#include <math.h>  // the functions of floats by their plain names

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cuda/simt/access.h"
#include "cuda/simt/launch.h"
#include "cuda/simt/number_types.h"
#include "cuda/simt/shared.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::ortmodule::cuda::simt::running->index)
#define blockIdx (::ortmodule::cuda::simt::grid.block)
#define blockDim (::ortmodule::cuda::simt::grid.threads)
#define gridDim (::ortmodule::cuda::simt::grid.blocks)

namespace ortmodule::cuda {

// Sends a value to the warp; afterwards each of its threads may look at what the others sent.
template <typename T>
void send_to_warp(T value) {
  static_assert(sizeof(T) <= 8);
  simt::Thread& self = *simt::running;
  std::memcpy(&self.sent[self.exchanges++ % 2], &value, sizeof(T));
  simt::wait(simt::Wait::kWarp);
}

template <typename T>
T sent_by(unsigned lane) {
  T value;
  std::memcpy(&value, &simt::lane_of_warp(lane).sent[(simt::running->exchanges - 1) % 2], sizeof(T));
  return value;
}

template <typename T>
T shuffled(unsigned mask, T value, unsigned from) {
  if (mask != ~0u) simt::fail("a shuffle of a part of the warp");
  send_to_warp(value);
  return sent_by<T>(from < simt::kWarp ? from : simt::running->lane());
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return shuffled(mask, value, static_cast<unsigned>(lane) % simt::kWarp);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return shuffled(mask, value, simt::running->lane() ^ static_cast<unsigned>(lanes));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  return shuffled(mask, value, simt::running->lane() + by);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  return shuffled(mask, value, simt::running->lane() - by);  // below the first lane: far above the last
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  if (mask != ~0u) simt::fail("a vote of a part of the warp");
  send_to_warp(predicate);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < simt::kWarp; ++lane) votes |= (sent_by<int>(lane) != 0) << lane;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0u; }

inline void __syncthreads() { simt::wait(simt::Wait::kBlock); }
inline void __syncwarp(unsigned mask = ~0u) {
  if (mask != ~0u) simt::fail("a barrier of a part of the warp");
  simt::wait(simt::Wait::kWarp);
}
[[noreturn]] inline void __trap() { simt::fail("a trap"); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }

using std::max;
using std::min;

}  // namespace ortmodule::cuda
