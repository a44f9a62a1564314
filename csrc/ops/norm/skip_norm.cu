// CUDA kernel of layer and RMS normalization of a sum: a residual and a bias are added while the row is read.
//
// The sum is kept in float, in registers where a row fits, and rounded where it is stored. A longer row is added again
// each time; what y may go over has been read by the same thread then.
#include "cuda/rows.cuh"
#include "ops/norm/skip_norm_launch.h"

namespace ortmodule::cuda {
namespace {

template <typename T>
struct Given {
  Global<const T> x, skip, added, scale, bias;
  Global<T> y, sum;
  Global<float> mean, rstd;
  int64_t rows;
  int columns;
  float epsilon;

  template <int N>
  __device__ __forceinline__ void sum_at(int64_t first, int column, float (&to)[N]) const {
    float more[N];
    load_floats<N>(x, first + column, to);
    load_floats<N>(skip, first + column, more);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] += more[k];
    if (!added) return;
    load_floats<N>(added, column, more);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] += more[k];
  }
};

template <typename T, int N, typename Plan, bool kCentered>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) normalize_sum(Given<T> a) {
  using Threads = Team<Plan::kThreads>;
  constexpr int kHeld = Plan::kHeld;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.columns;
  float held[kHeld > 0 ? kHeld : 1][N];
  const auto each = [&](auto f) {
    for_each_vector<N, Plan::kThreads, kHeld>(a.columns, [&](int v, int column) {
      float values[N];
      if constexpr (kHeld > 0) {
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] = held[v][k];
      } else {
        a.sum_at(first, column, values);
      }
      f(column, values);
    });
  };
  if constexpr (kHeld > 0)
    for_each_vector<N, Plan::kThreads, kHeld>(a.columns, [&](int v, int column) { a.sum_at(first, column, held[v]); });
  float mean = 0;
  if constexpr (kCentered) {
    float sum = 0;
    each([&](int, const float (&values)[N]) {
#pragma unroll
      for (int k = 0; k < N; ++k) sum += values[k];
    });
    mean = Threads::template reduce<Sum>(sum) / static_cast<float>(a.columns);
  }
  float squares = 0;
  each([&](int, const float (&values)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (values[k] - mean) * (values[k] - mean);
  });
  const float rstd = rsqrtf(Threads::template reduce<Sum>(squares) / static_cast<float>(a.columns) + a.epsilon);
  each([&](int column, float (&values)[N]) {
    if (a.sum) store_floats<N>(a.sum, first + column, values);
    float scale[N], bias[N] = {};
    load_floats<N>(a.scale, column, scale);
    if (a.bias) load_floats<N>(a.bias, column, bias);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = (values[k] - mean) * rstd * scale[k] + bias[k];
    store_floats<N>(a.y, first + column, values);
  });
  if (Threads::thread() != 0) return;
  if (kCentered && a.mean) store(a.mean, row, mean);
  if (a.rstd) store(a.rstd, row, rstd);
}

int skip_norm(const SkipNormLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Given<T> given{global<const T>(a.x),
                         global<const T>(a.skip),
                         global<const T>(a.added),
                         global<const T>(a.scale),
                         global<const T>(a.bias),
                         global<T>(a.y),
                         global<T>(a.sum),
                         global<float>(a.mean),
                         global<float>(a.rstd),
                         a.rows,
                         static_cast<int>(a.columns),
                         a.epsilon};
    const bool fits = takes_vectors<T>(a.columns, a.x, a.skip, a.added, a.scale, a.bias, a.y, a.sum);
    return by_flag(fits, [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_row_length<N>(a.columns, [&](auto plan) {
        using Plan = decltype(plan);
        using Threads = Team<Plan::kThreads>;
        return by_flag(!a.root_mean_square, [&](auto centered) {
          return launch(centered() ? "skip_layer_norm" : "skip_rms_norm", &normalize_sum<T, N, Plan, centered()>,
                        blocks_for(a.rows, Threads::kPerBlock), Threads::kBlockThreads, stream, given);
        });
      });
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(skip_norm, SkipNormLaunch, skip_norm);

}  // namespace ortmodule::cuda
