// CUDA kernels of layer and RMS normalization, forward and backward.
//
// A row is one warp's or one block's, and held in registers where it fits: each element is read once. Mean and variance
// are taken one after the other, the variance of the differences from the mean. The gradients of scale and bias are
// sums over the rows in two kernels (column_sum.cuh).
#include "ops/norm/norm_launch.h"

#include "cuda/column_sum.cuh"
#include "cuda/rows.cuh"

namespace ortmodule::cuda {
namespace {

template <typename T>
struct Forward {
  Global<const T> x, scale, bias;
  Global<T> y;
  Global<float> mean, rstd;
  int64_t rows;
  int columns;
  float epsilon;
};

template <typename T, int N, typename Plan, bool kCentered>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) normalize(Forward<T> a) {
  using Threads = Team<Plan::kThreads>;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.columns;
  const Row<T, N, Plan::kThreads, Plan::kHeld> x(a.x, first, a.columns);
  const auto each = [&](auto f) {
    for_each_vector<N, Plan::kThreads, Plan::kHeld>(a.columns, [&](int v, int column) {
      float values[N];
      x.get(v, column, values);
      f(column, values);
    });
  };
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
    float scale[N], bias[N] = {};
    load_floats<N>(a.scale, column, scale);
    if (a.bias) load_floats<N>(a.bias, column, bias);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = (values[k] - mean) * rstd * scale[k] + bias[k];
    store_floats<N>(a.y, first + column, values);
  });
  if (Threads::thread() == 0) {
    if constexpr (kCentered) store(a.mean, row, mean);
    store(a.rstd, row, rstd);
  }
}

template <typename T>
struct Backward {
  Global<const T> dy, x, scale;
  Global<const float> mean, rstd;
  Global<T> dx;
  int64_t rows;
  int columns;
};

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * scale and xhat = (x - mean) * rstd; mean(g) is left
// out where nothing was subtracted.
template <typename T, int N, typename Plan, bool kCentered>
__global__ void __launch_bounds__(Team<Plan::kThreads>::kBlockThreads) normalize_gradient(Backward<T> a) {
  using Threads = Team<Plan::kThreads>;
  const int64_t row = Threads::row();
  if (row >= a.rows) return;
  const int64_t first = row * a.columns;
  const Row<T, N, Plan::kThreads, Plan::kHeld> x(a.x, first, a.columns), dy(a.dy, first, a.columns);
  const float mean = kCentered ? load(a.mean, row) : 0.0f, rstd = load(a.rstd, row);
  const auto each = [&](auto f) {
    for_each_vector<N, Plan::kThreads, Plan::kHeld>(a.columns, [&](int v, int column) {
      float xhat[N], g[N], scale[N];
      x.get(v, column, xhat);
      dy.get(v, column, g);
      load_floats<N>(a.scale, column, scale);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        xhat[k] = (xhat[k] - mean) * rstd;
        g[k] *= scale[k];
      }
      f(column, xhat, g);
    });
  };
  float sums[2] = {};  // of g * xhat and of g
  each([&](int, const float (&xhat)[N], const float (&g)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[0] += g[k] * xhat[k];
      sums[1] += g[k];
    }
  });
  Threads::template reduce<Sum>(sums);
  const float along = sums[0] / static_cast<float>(a.columns);
  const float plain = kCentered ? sums[1] / static_cast<float>(a.columns) : 0.0f;
  each([&](int column, const float (&xhat)[N], const float (&g)[N]) {
    float dx[N];
#pragma unroll
    for (int k = 0; k < N; ++k) dx[k] = rstd * (g[k] - plain - xhat[k] * along);
    store_floats<N>(a.dx, first + column, dx);
  });
}

// What is added up for the gradients of scale and bias.
template <typename T, int N, bool kCentered>
struct ParameterTerms {
  Global<const T> dy, x;
  Global<const float> mean, rstd;
  int64_t columns;

  __device__ void get(int64_t row, int64_t column, float (&to)[kCentered ? 2 : 1][N]) const {
    float values[N], g[N];
    load_floats<N>(x, row * columns + column, values);
    load_floats<N>(dy, row * columns + column, g);
    const float m = kCentered ? load(mean, row) : 0.0f, r = load(rstd, row);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      to[0][k] = g[k] * ((values[k] - m) * r);
      if constexpr (kCentered) to[1][k] = g[k];
    }
  }
};

int norm(const NormLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(a.columns, a.x, a.y, a.scale, a.bias), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_row_length<N>(a.columns, [&](auto plan) {
        using Plan = decltype(plan);
        using Threads = Team<Plan::kThreads>;
        const Forward<T> given{global<const T>(a.x),
                               global<const T>(a.scale),
                               global<const T>(a.bias),
                               global<T>(a.y),
                               global<float>(a.mean),
                               global<float>(a.rstd),
                               a.rows,
                               static_cast<int>(a.columns),
                               a.epsilon};
        const unsigned blocks = blocks_for(a.rows, Threads::kPerBlock);
        if (a.root_mean_square)
          return launch("rms_norm", &normalize<T, N, Plan, false>, blocks, Threads::kBlockThreads, stream, given);
        return launch("layer_norm", &normalize<T, N, Plan, true>, blocks, Threads::kBlockThreads, stream, given);
      });
    });
  });
}

template <typename T, int N, bool kCentered>
int input_gradient(const NormGradLaunch& a, void* stream) {
  return by_row_length<N>(a.columns, [&](auto plan) {
    using Plan = decltype(plan);
    using Threads = Team<Plan::kThreads>;
    const Backward<T> given{global<const T>(a.dy),
                            global<const T>(a.x),
                            global<const T>(a.scale),
                            global<const float>(a.mean),
                            global<const float>(a.rstd),
                            global<T>(a.dx),
                            a.rows,
                            static_cast<int>(a.columns)};
    return launch(kCentered ? "layer_norm_gradient" : "rms_norm_gradient", &normalize_gradient<T, N, Plan, kCentered>,
                  blocks_for(a.rows, Threads::kPerBlock), Threads::kBlockThreads, stream, given);
  });
}

template <typename T, int N, bool kCentered>
int parameter_gradients(const NormGradLaunch& a, void* stream) {
  constexpr int kSums = kCentered ? 2 : 1;
  const ParameterTerms<T, N, kCentered> terms{global<const T>(a.dy), global<const T>(a.x), global<const float>(a.mean),
                                              global<const float>(a.rstd), a.columns};
  const int error = launch_column_parts<kSums, N>("norm_parameters", terms, a.workspace, a.rows, a.columns, stream);
  if (error) return error;
  const SumTargets<T> targets{global<T>(a.dscale), global<T>(a.dbias)};
  return launch_column_total<kSums>("norm_parameters_total", a.workspace, targets, a.rows, a.columns, stream);
}

int norm_gradient(const NormGradLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(a.columns, a.dy, a.x, a.scale, a.dx), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return by_flag(!a.root_mean_square, [&](auto centered) {
        int error = a.dx ? input_gradient<T, N, centered()>(a, stream) : 0;
        if (!error && (a.dscale || a.dbias)) error = parameter_gradients<T, N, centered()>(a, stream);
        return error;
      });
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(norm, NormLaunch, norm);
ORTMODULE_CUDA_LAUNCH(norm_gradient, NormGradLaunch, norm_gradient);

}  // namespace ortmodule::cuda
