// CUDA kernel of PhiloxDropout, forward and backward: the mask is made in registers, in the bits of the CPU's.
#include "cuda/elements.cuh"
#include "cuda/philox.cuh"
#include "ops/dropout/philox_dropout_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

template <typename T>
struct Dropout {
  Global<const T> x;
  Global<T> y;
  PhiloxKey key;
  uint32_t threshold;
  float scale;
  int64_t count;
};

// A thread has N elements side by side with kVectors, else every 32nd of the warp's 32 * N.
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kThreads) philox_dropout(Dropout<T> a) {
  constexpr int N = kVectorWidth<T>, kPerWarp = kWarpSize * N;
  ORTMODULE_SHARED(uint32_t, words, kWarps* kPerWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + warp) * kPerWarp;
  if (first >= a.count) return;
  philox_words<N>(a.key, first, lane, words, warp * kPerWarp);
  const auto kept = [&](int i, float x) { return x * (words[warp * kPerWarp + i] >= a.threshold ? a.scale : 0.0f); };
  if (kVectors && first + (lane + 1) * N <= a.count) {
    float values[N];
    load_floats<N>(a.x, first + lane * N, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = kept(lane * N + k, values[k]);
    store_floats<N>(a.y, first + lane * N, values);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int i = kVectors ? lane * N + k : k * kWarpSize + lane;
      if (first + i < a.count) store(a.y, first + i, from_float<T>(kept(i, to_float(load(a.x, first + i)))));
    }
  }
}

int dropout(const PhiloxDropoutLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Dropout<T> given{global<const T>(a.x), global<T>(a.y), {a.seed, a.offset}, a.threshold, a.scale, a.count};
    return by_flag(takes_vectors<T>(0, a.x, a.y), [&](auto vectors) {
      return launch("philox_dropout", &philox_dropout<T, vectors()>,
                    blocks_for(a.count, int64_t{kThreads} * kVectorWidth<T>), kThreads, stream, given);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(philox_dropout, PhiloxDropoutLaunch, dropout);

}  // namespace ortmodule::cuda
