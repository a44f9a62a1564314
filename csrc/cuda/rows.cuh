// A row of a matrix as its team of threads has it: in registers where it fits, else read again each time.
//
// A team takes vectors of N elements in turns: thread t has those at (t + k * kThreads) * N. What is held is read from
// memory once however often the kernel goes over the row.
#pragma once

#include "cuda/elements.cuh"
#include "cuda/reduce.cuh"

namespace ortmodule::cuda {

// Vectors of a row that one thread holds, at most; 0: none.
template <typename T, int N, int kThreads, int kHeld>
class Row {
 public:
  __device__ __forceinline__ Row(Global<const T> p, int64_t first, int columns) : p_(p), first_(first) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        const int column = (v * kThreads + Team<kThreads>::thread()) * N;
        if (column < columns) load_floats<N>(p_, first_ + column, held_[v]);
      }
    }
  }

  // The elements at `column`, which is the v-th of this thread's.
  __device__ __forceinline__ void get(int v, int column, float (&to)[N]) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int k = 0; k < N; ++k) to[k] = held_[v][k];
    } else {
      load_floats<N>(p_, first_ + column, to);
    }
  }

 private:
  Global<const T> p_;
  int64_t first_;
  float held_[kHeld > 0 ? kHeld : 1][N];
};

// Calls f(v, column) for each vector of this thread's.
template <int N, int kThreads, int kHeld, typename F>
__device__ __forceinline__ void for_each_vector(int columns, F f) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      const int column = (v * kThreads + Team<kThreads>::thread()) * N;
      if (column < columns) f(v, column);
    }
  } else {
    for (int column = Team<kThreads>::thread() * N; column < columns; column += kThreads * N) f(0, column);
  }
}

// How rows of so many columns are taken.
template <int kTeam, int kVectors>
struct RowPlan {
  static constexpr int kThreads = kTeam, kHeld = kVectors;
};

constexpr int kVectorsHeld = 4, kRowThreads = 256;

// Calls f(RowPlan<...>()) by how many vectors of N a row has.
template <int N, typename F>
int by_row_length(int64_t columns, F f) {
  if (columns <= int64_t{kWarpSize} * N * kVectorsHeld) return f(RowPlan<kWarpSize, kVectorsHeld>());
  if (columns <= int64_t{kRowThreads} * N * kVectorsHeld) return f(RowPlan<kRowThreads, kVectorsHeld>());
  return f(RowPlan<kRowThreads, 0>());
}

}  // namespace ortmodule::cuda
