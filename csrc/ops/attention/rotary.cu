// CUDA kernel of RotaryEmbedding, which is its own gradient with the other sign of the sine.
//
// A thread turns a vector of each half: what it reads of x it writes, so that y may be x.
#include "cuda/elements.cuh"
#include "ops/attention/rotary_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Rotary {
  Global<const T> x, cos, sin;
  Global<T> y;
  RotaryLaunch sizes;
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) rotary(Rotary<T> a) {
  const RotaryLaunch& s = a.sizes;
  const int64_t vectors = s.half / N, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.batch * s.outer * s.inner * vectors) return;
  const int64_t head = i / vectors, k = i % vectors * N;
  const int64_t inner = head % s.inner, outer = head / s.inner % s.outer, batch = head / (s.inner * s.outer);
  const int64_t at = batch * s.by_batch + outer * s.by_outer + inner * s.by_inner + k;
  const int64_t cached = batch * s.cache_by_batch + outer * s.cache_by_outer + inner * s.cache_by_inner + k;
  float first[N], second[N], cos[N], sin[N];
  load_floats<N>(a.x, at, first);
  load_floats<N>(a.x, at + s.half, second);
  load_floats<N>(a.cos, cached, cos);
  load_floats<N>(a.sin, cached, sin);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float x1 = first[j], x2 = second[j];
    first[j] = x1 * cos[j] - x2 * sin[j];
    second[j] = x2 * cos[j] + x1 * sin[j];
  }
  store_floats<N>(a.y, at, first);
  store_floats<N>(a.y, at + s.half, second);
}

// Whether all distances are multiples of N.
bool in_steps(const RotaryLaunch& a, int64_t n) {
  for (const int64_t by :
       {a.half, a.by_batch, a.by_outer, a.by_inner, a.cache_by_batch, a.cache_by_outer, a.cache_by_inner})
    if (by % n != 0) return false;
  return true;
}

int run_rotary(const RotaryLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rotary<T> given{global<const T>(a.x), global<const T>(a.cos), global<const T>(a.sin), global<T>(a.y), a};
    const bool fits = in_steps(a, kVectorWidth<T>) && takes_vectors<T>(0, a.x, a.cos, a.sin, a.y);
    return by_flag(fits, [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      const int64_t count = a.batch * a.outer * a.inner * (a.half / N);
      return launch("rotary", &rotary<T, N>, blocks_for(count, kThreads), kThreads, stream, given);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(rotary, RotaryLaunch, run_rotary);

}  // namespace ortmodule::cuda
