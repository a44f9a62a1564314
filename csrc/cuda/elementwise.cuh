// Kernels over the elements of tensors of one shape: each thread takes 16 bytes, the last one what is left.
#pragma once

#include "cuda/elements.cuh"

namespace ortmodule::cuda {

constexpr int kElementThreads = 256;

// to[i] = f(a[i]), or f(a[i], b[i]) with two inputs. In place of a or b too.
template <typename T, int N, int kInputs, typename F>
__global__ void __launch_bounds__(kElementThreads)
    elementwise(Global<const T> a, Global<const T> b, Global<T> to, int64_t n, F f) {
  const int64_t first = (int64_t{blockIdx.x} * kElementThreads + threadIdx.x) * N;
  const auto value = [&](float x, float y) {
    if constexpr (kInputs == 1)
      return f(x);
    else
      return f(x, y);
  };
  if (first + N <= n) {
    float x[N], y[N];
    load_floats<N>(a, first, x);
    if constexpr (kInputs == 2) load_floats<N>(b, first, y);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = value(x[k], kInputs == 2 ? y[k] : 0.0f);
    store_floats<N>(to, first, x);
  } else {
    for (int64_t i = first; i < n; ++i)
      store(to, i, from_float<T>(value(to_float(load(a, i)), kInputs == 2 ? to_float(load(b, i)) : 0.0f)));
  }
}

template <int kInputs, typename F>
int launch_elementwise(const char* name, Element type, const void* a, const void* b, void* to, int64_t n, F f,
                       void* stream) {
  return by_element(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(0, a, b, to), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return launch(name, &elementwise<T, N, kInputs, F>, blocks_for(n, int64_t{kElementThreads} * N), kElementThreads,
                    stream, global<const T>(a), global<const T>(b), global<T>(to), n, f);
    });
  });
}

}  // namespace ortmodule::cuda
