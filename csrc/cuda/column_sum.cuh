// Sums over the rows of a matrix, for each column: gradients of scales and biases, and reductions to a shape.
//
// Two kernels. Blocks of the first have a tile of columns and a chunk of rows each: threads that stand beside one
// another read a row's neighbours, and the sums of the block's 8 rows are added in shared memory. The second adds the
// chunks. No atomics: the order of every addition is given by the sizes, so that runs give the same bits.
#pragma once

#include "cuda/elements.cuh"

namespace ortmodule::cuda {

constexpr int kTileRows = 8, kTileThreads = kWarpSize * kTileRows;
constexpr int kMostChunks = 64, kRowsPerChunk = 64;

// Of so many rows; a workspace has chunks * sums * columns floats.
inline int64_t column_sum_chunks(int64_t rows) {
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  return chunks < 1 ? 1 : chunks < kMostChunks ? chunks : kMostChunks;
}

// Terms::get(row, column, float (&to)[kSums][N]) has what is added, for N columns from `column` on. Four blocks at
// once: left to itself, ptxas takes 40 registers a thread for six of them and spills one.
template <typename Terms, int kSums, int N>
__global__ void __launch_bounds__(kTileThreads, 4)
    column_sum_parts(Terms terms, Global<float> parts, int64_t rows, int64_t columns, int64_t chunk_rows) {
  constexpr int kColumns = kWarpSize * N;
  ORTMODULE_SHARED(float, tile, kSums * kTileRows * kColumns);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, line = thread / kWarpSize;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane * N;
  const int64_t first = int64_t{blockIdx.y} * chunk_rows;
  const int64_t last = min(first + chunk_rows, rows);
  float sums[kSums][N] = {};
  if (column < columns) {
    for (int64_t row = first + line; row < last; row += kTileRows) {
      float values[kSums][N];
      terms.get(row, column, values);
#pragma unroll
      for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (int k = 0; k < N; ++k) sums[s][k] += values[s][k];
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s)
#pragma unroll
    for (int k = 0; k < N; ++k) tile[(s * kTileRows + line) * kColumns + lane * N + k] = sums[s][k];
  __syncthreads();
  // One column a thread now, so that neighbours store side by side.
  const int64_t mine = int64_t{blockIdx.x} * kColumns + thread;
  if (thread >= kColumns || mine >= columns) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float total = 0;
    for (int other = 0; other < kTileRows; ++other) total += tile[(s * kTileRows + other) * kColumns + thread];
    store(parts, (int64_t{blockIdx.y} * kSums + s) * columns + mine, total);
  }
}

// Where the sums go; null: one is not wanted.
template <typename T>
struct SumTargets {
  Global<T> first, second;
};

// Blocks (i, s) add the s-th sums over the chunks.
template <typename T, int kSums>
__global__ void __launch_bounds__(kTileThreads)
    column_sum_total(Global<const float> parts, SumTargets<T> targets, int64_t columns, int64_t chunks) {
  const int64_t column = int64_t{blockIdx.x} * kTileThreads + threadIdx.x;
  const int sum = static_cast<int>(blockIdx.y);
  const Global<T> to = sum == 0 ? targets.first : targets.second;
  if (column >= columns || !to) return;
  float total = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += load(parts, (chunk * kSums + sum) * columns + column);
  store(to, column, from_float<T>(total));
}

// Fills the workspace; launch_column_total() adds what is there.
template <int kSums, int N, typename Terms>
int launch_column_parts(const char* name, const Terms& terms, void* workspace, int64_t rows, int64_t columns,
                        void* stream) {
  const int64_t chunks = column_sum_chunks(rows), chunk_rows = (rows + chunks - 1) / chunks;
  const dim3 blocks(blocks_for(columns, int64_t{kWarpSize} * N), static_cast<unsigned>(chunks));
  return launch(name, &column_sum_parts<Terms, kSums, N>, blocks, kTileThreads, stream, terms, global<float>(workspace),
                rows, columns, chunk_rows);
}

template <int kSums, typename T>
int launch_column_total(const char* name, const void* workspace, const SumTargets<T>& targets, int64_t rows,
                        int64_t columns, void* stream) {
  static_assert(kSums <= 2);
  return launch(name, &column_sum_total<T, kSums>, dim3(blocks_for(columns, kTileThreads), kSums), kTileThreads, stream,
                global<const float>(workspace), targets, columns, column_sum_chunks(rows));
}

}  // namespace ortmodule::cuda
