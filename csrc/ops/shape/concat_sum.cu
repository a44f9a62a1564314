// CUDA kernels of ConcatSum: what is added up over rows is written side by side on the way.
#include "cuda/column_sum.cuh"
#include "ops/shape/concat_sum_launch.h"

namespace ortmodule::cuda {
namespace {

template <typename T>
struct Parts {
  Global<const T> from[kConcatParts];
  int64_t ends[kConcatParts];  // columns where each part ends
  Global<T> y;
  int64_t columns;

  template <int N>
  __device__ __forceinline__ void get(int64_t row, int64_t column, float (&to)[1][N]) const {
    Global<const T> part = from[0];
    int64_t begin = 0, end = ends[0];
#pragma unroll
    for (int k = 1; k < kConcatParts; ++k) {
      const bool here = column >= end;
      part = here ? from[k] : part;
      begin = here ? end : begin;
      end = here ? ends[k] : end;
    }
    load_floats<N>(part, row * (end - begin) + column - begin, to[0]);
    store_floats<N>(y, row * columns + column, to[0]);
  }
};

template <typename T, int N>
int run_parts(const ConcatSumLaunch& a, void* stream) {
  Parts<T> parts{};
  int64_t end = 0;
  for (int k = 0; k < kConcatParts; ++k) {
    parts.from[k] = global<const T>(a.parts[k]);
    parts.ends[k] = end += a.widths[k];
  }
  parts.y = global<T>(a.y);
  parts.columns = a.columns;
  const int error = launch_column_parts<1, N>("concat_sum", parts, a.workspace, a.rows, a.columns, stream);
  if (error) return error;
  if (a.wide) {
    const SumTargets<float> target{global<float>(a.sums), {}};
    return launch_column_total<1>("concat_sum_total", a.workspace, target, a.rows, a.columns, stream);
  }
  const SumTargets<T> target{global<T>(a.sums), {}};
  return launch_column_total<1>("concat_sum_total", a.workspace, target, a.rows, a.columns, stream);
}

int run(const ConcatSumLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    bool aligned = takes_vectors<T>(0, a.y);
    for (int k = 0; k < kConcatParts; ++k) aligned = aligned && takes_vectors<T>(a.widths[k], a.parts[k]);
    return by_flag(aligned, [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      return run_parts<T, N>(a, stream);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(concat_sum, ConcatSumLaunch, run);

}  // namespace ortmodule::cuda
