// CUDA kernels of ReduceSum, ReduceMean and ReduceSumTo over the first or the last axes.
//
// A sum over columns is one warp's or one block's; where a row is long, blocks add parts of it and another kernel adds
// those. Sums over rows are those of column_sum.cuh.
#include "cuda/column_sum.cuh"
#include "cuda/reduce.cuh"
#include "ops/reduce/sum_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

// y[row, part] = scale * the sum of a part of the row.
template <typename T, typename To, int N, int kTeam>
__global__ void __launch_bounds__(Team<kTeam>::kBlockThreads)
    sum_columns(Global<const T> x, Global<To> y, int64_t rows, int64_t columns, int64_t part, float scale) {
  using Threads = Team<kTeam>;
  const int64_t row = Threads::row(), first = int64_t{blockIdx.y} * part, last = min(first + part, columns);
  if (row >= rows) return;
  float sum = 0;
  for (int64_t column = first + Threads::thread() * N; column < last; column += kTeam * N) {
    float values[N];
    load_floats<N>(x, row * columns + column, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += values[k];
  }
  sum = Threads::template reduce<Sum>(sum);
  if (Threads::thread() == 0) store(y, row * gridDim.y + blockIdx.y, from_float<To>(sum * scale));
}

template <typename T, typename To, int N>
int launch_columns(const void* x, void* y, int64_t rows, int64_t columns, int64_t parts, float scale, void* stream) {
  return by_flag(columns <= int64_t{kWarpSize} * N * 4, [&](auto narrow) {
    constexpr int kTeam = narrow() ? kWarpSize : kThreads;
    const dim3 blocks(blocks_for(rows, Team<kTeam>::kPerBlock), static_cast<unsigned>(parts));
    return launch("sum_columns", &sum_columns<T, To, N, kTeam>, blocks, Team<kTeam>::kBlockThreads, stream,
                  global<const T>(x), global<To>(y), rows, columns, kSumPart, scale);
  });
}

template <typename T>
struct Terms {
  Global<const T> x;
  int64_t columns;

  template <int N>
  __device__ void get(int64_t row, int64_t column, float (&to)[1][N]) const {
    load_floats<N>(x, row * columns + column, to[0]);
  }
};

template <typename T, int N>
int sum_over_columns(const SumLaunch& a, void* stream) {
  const int64_t parts = (a.columns + kSumPart - 1) / kSumPart;
  if (parts == 1) return launch_columns<T, T, N>(a.x, a.y, a.rows, a.columns, 1, a.scale, stream);
  const int error = launch_columns<T, float, N>(a.x, a.workspace, a.rows, a.columns, parts, 1.0f, stream);
  return error ? error : launch_columns<float, T, 1>(a.workspace, a.y, a.rows, parts, 1, a.scale, stream);
}

template <typename T, int N>
int sum_over_rows(const SumLaunch& a, void* stream) {
  const Terms<T> terms{global<const T>(a.x), a.columns};
  const int error = launch_column_parts<1, N>("sum_rows_parts", terms, a.workspace, a.rows, a.columns, stream);
  const SumTargets<T> target{global<T>(a.y), {}};
  return error ? error : launch_column_total<1>("sum_rows_total", a.workspace, target, a.rows, a.columns, stream);
}

int sum(const SumLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    return by_flag(takes_vectors<T>(a.columns, a.x), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return a.over_rows ? sum_over_rows<T, N>(a, stream) : sum_over_columns<T, N>(a, stream);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(sum, SumLaunch, sum);

}  // namespace ortmodule::cuda
