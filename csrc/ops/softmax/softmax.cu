// CUDA kernels of Softmax and LogSoftmax over rows, and of their gradients, which read the output.
#include "cuda/softmax_rows.cuh"
#include "ops/softmax/softmax_launch.h"

namespace ortmodule::cuda {
namespace {

template <typename T>
struct Rows {
  Global<const T> x, y;  // `y`: of the gradient
  Global<T> to;
  int64_t rows;
  int columns;
};

template <typename T, int N, typename Plan, bool kLog>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) softmax(Rows<T> a) {
  using Threads = Team<Plan::kThreads>;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.columns;
  const Row<T, N, Plan::kThreads, Plan::kHeld> x(a.x, first, a.columns);
  const SoftmaxSums s = softmax_sums(x, a.columns);
  const float log_sum = kLog ? logf(s.sum) : 0.0f, factor = 1.0f / s.sum;
  for_each_vector<N, Plan::kThreads, Plan::kHeld>(a.columns, [&](int v, int column) {
    float values[N];
    x.get(v, column, values);
#pragma unroll
    for (int k = 0; k < N; ++k)
      values[k] = kLog ? values[k] - s.largest - log_sum : expf(values[k] - s.largest) * factor;
    store_floats<N>(a.to, first + column, values);
  });
}

// dx = y * (dy - sum(dy * y)), and with the logarithm dx = dy - exp(y) * sum(dy).
template <typename T, int N, typename Plan, bool kLog>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) softmax_gradient(Rows<T> a) {
  using Threads = Team<Plan::kThreads>;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.columns;
  const Row<T, N, Plan::kThreads, Plan::kHeld> dy(a.x, first, a.columns), y(a.y, first, a.columns);
  const auto each = [&](auto f) {
    for_each_vector<N, Plan::kThreads, Plan::kHeld>(a.columns, [&](int v, int column) {
      float gradient[N], value[N];
      dy.get(v, column, gradient);
      y.get(v, column, value);
      f(column, gradient, value);
    });
  };
  float sum = 0;
  each([&](int, const float (&gradient)[N], const float (&value)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) sum += kLog ? gradient[k] : gradient[k] * value[k];
  });
  sum = Threads::template reduce<Sum>(sum);
  each([&](int column, float (&gradient)[N], const float (&value)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      gradient[k] = kLog ? gradient[k] - expf(value[k]) * sum : value[k] * (gradient[k] - sum);
    store_floats<N>(a.to, first + column, gradient);
  });
}

// `run(N, plan, log)` for rows of this type, with and without vectors.
template <typename T, typename F, typename... Addresses>
int by_rows(int64_t columns, bool log, F run, Addresses... addresses) {
  return by_flag(takes_vectors<T>(columns, addresses...), [&](auto vectors) {
    constexpr int N = vectors() ? kVectorWidth<T> : 1;
    return by_row_length<N>(columns, [&](auto plan) {
      return by_flag(log, [&](auto is_log) { return run(std::integral_constant<int, N>(), plan, is_log); });
    });
  });
}

int run_softmax(const SoftmaxLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rows<T> rows{global<const T>(a.x), {}, global<T>(a.y), a.rows, static_cast<int>(a.columns)};
    const auto run = [&](auto n, auto plan, auto log) {
      using Threads = Team<decltype(plan)::kThreads>;
      return launch(log() ? "log_softmax" : "softmax", &softmax<T, n(), decltype(plan), log()>,
                    blocks_for(a.rows, Threads::kPerBlock), Threads::kBlockThreads, stream, rows);
    };
    return by_rows<T>(a.columns, a.log, run, a.x, a.y);
  });
}

int run_softmax_gradient(const SoftmaxGradLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Rows<T> rows{global<const T>(a.dy), global<const T>(a.y), global<T>(a.dx), a.rows,
                       static_cast<int>(a.columns)};
    const auto run = [&](auto n, auto plan, auto log) {
      using Threads = Team<decltype(plan)::kThreads>;
      return launch(log() ? "log_softmax_gradient" : "softmax_gradient",
                    &softmax_gradient<T, n(), decltype(plan), log()>, blocks_for(a.rows, Threads::kPerBlock),
                    Threads::kBlockThreads, stream, rows);
    };
    return by_rows<T>(a.columns, a.log, run, a.dy, a.y, a.dx);
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(softmax, SoftmaxLaunch, run_softmax);
ORTMODULE_CUDA_LAUNCH(softmax_gradient, SoftmaxGradLaunch, run_softmax_gradient);

}  // namespace ortmodule::cuda
