// Philox4x32-10 on a GPU, in the engine's layout (kernels/philox.h): the words of an element are those of the CPU.
//
// Block b of 64 elements has 16 counters from 16 b on, and word w of counter l decides element 64 b + 16 w + l. A
// thread that takes 16 bytes of elements that lie side by side needs words of several counters: the warp makes them
// together, and hands them over in shared memory.
#pragma once

#include "cuda/kernel.cuh"

namespace ortmodule::cuda {

struct PhiloxKey {
  uint64_t seed, offset;
};

__device__ __forceinline__ void philox(PhiloxKey key, uint64_t counter, uint32_t (&words)[4]) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(key.offset), c3 = static_cast<uint32_t>(key.offset >> 32);
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
    const uint32_t high1 = __umulhi(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

constexpr int kPhiloxCounters = 16, kPhiloxElements = 64;  // of a block

// The words of 32 * N elements from `first` on, a multiple of that, for one warp: `words`, its part of shared memory,
// has the one of element first + i at i. All of the warp's threads call it; the words are there once it returns.
template <int N, typename Words>
__device__ __forceinline__ void philox_words(PhiloxKey key, int64_t first, int lane, Words& words, int base) {
  static_assert(N % 4 == 0);
#pragma unroll
  for (int part = 0; part < N / 4; ++part) {
    const int counter = part * kWarpSize + lane;
    uint32_t made[4];
    philox(key, static_cast<uint64_t>(first / kPhiloxElements * kPhiloxCounters + counter), made);
    const int at = base + counter / kPhiloxCounters * kPhiloxElements + counter % kPhiloxCounters;
#pragma unroll
    for (int w = 0; w < 4; ++w) words[at + w * kPhiloxCounters] = made[w];
  }
  __syncwarp();
}

}  // namespace ortmodule::cuda
