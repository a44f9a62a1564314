// CUDA kernels of Embedding and of gradients that sum rows by their position (Embedding, Gather).
//
// Sums take ids in ascending order, in chunks of 64. A run of equal ids within one chunk is one warp's; one that goes
// on into the next chunk is kept as that chunk's last sum, its further parts as the first sums of the chunks behind,
// and a second kernel adds those in order. So no two warps write a row, however often an id occurs, and nothing is
// atomic.
#include "cuda/elements.cuh"
#include "ops/index/row_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;

template <typename T>
struct Gather {
  Global<const T> table;
  Global<const int64_t> ids;
  Global<T> y;
  int64_t count, width, table_rows;
};

// A row is `width` of T, which is as many bytes as both sides are aligned to.
template <typename T>
__global__ void __launch_bounds__(kThreads) gather_rows(Gather<T> a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (row >= a.count) return;
  int64_t id = load(a.ids, row);
  if (id < 0) id += a.table_rows;
  if (id < 0 || id >= a.table_rows) __trap();
  for (int64_t i = threadIdx.x % kWarpSize; i < a.width; i += kWarpSize) {
    const auto value = load_vector<1>(a.table, id * a.width + i);
    store_vector<1>(a.y, row * a.width + i, value);
  }
}

template <typename T>
struct Sums {
  Global<const T> dy;
  Global<const int64_t> ids, positions;
  Global<T> table;
  Global<float> workspace;
  int64_t count, width, table_rows, skipped;

  __device__ __forceinline__ bool same(int64_t i, int64_t j) const { return load(ids, i) == load(ids, j); }
  // Where a chunk's first (0) and last (1) sum are kept.
  __device__ __forceinline__ int64_t kept(int64_t chunk, int which) const { return (chunk * 2 + which) * width; }
};

template <int N, typename T>
__device__ __forceinline__ void add_to_table(const Sums<T>& a, int64_t id, int64_t column, const float (&sums)[N]) {
  float values[N];
  load_floats<N>(a.table, id * a.width + column, values);
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] += sums[k];
  store_floats<N>(a.table, id * a.width + column, values);
}

// Warp i of the grid has the run that begins at id i, if one does.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_runs(Sums<T> a) {
  const int64_t begin = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (begin >= a.count) return;
  const int64_t chunk = begin / kSumChunk, chunk_end = min((chunk + 1) * kSumChunk, a.count);
  const bool continues = begin > 0 && a.same(begin - 1, begin);
  if (continues && begin % kSumChunk != 0) return;
  const int64_t id = load(a.ids, begin);
  if (id < 0 || id >= a.table_rows) __trap();
  if (id == a.skipped) return;
  int64_t end = begin + 1;
  while (end < chunk_end && a.same(begin, end)) ++end;
  const bool goes_on = end == chunk_end && end < a.count && a.same(begin, end);
  for (int64_t column = threadIdx.x % kWarpSize * N; column < a.width; column += kWarpSize * N) {
    float sums[N] = {};
    for (int64_t i = begin; i < end; ++i) {
      float values[N];
      load_floats<N>(a.dy, load(a.positions, i) * a.width + column, values);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += values[k];
    }
    if (continues)
      store_floats<N>(a.workspace, a.kept(chunk, 0) + column, sums);
    else if (goes_on)
      store_floats<N>(a.workspace, a.kept(chunk, 1) + column, sums);
    else
      add_to_table<N>(a, id, column, sums);
  }
}

// Warp c has the run that begins in chunk c and goes on behind it, if one does.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_long_runs(Sums<T> a) {
  const int64_t chunk = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t next = (chunk + 1) * kSumChunk;
  if (next >= a.count || !a.same(next - 1, next)) return;
  const int64_t first = chunk * kSumChunk, id = load(a.ids, next);
  if (id == a.skipped) return;
  if (first > 0 && a.same(first - 1, first) && load(a.ids, first) == id) return;  // it began before
  int64_t chunks = 1;
  while ((chunk + chunks + 1) * kSumChunk < a.count && load(a.ids, (chunk + chunks + 1) * kSumChunk) == id) ++chunks;
  for (int64_t column = threadIdx.x % kWarpSize * N; column < a.width; column += kWarpSize * N) {
    float sums[N];
    load_floats<N>(a.workspace, a.kept(chunk, 1) + column, sums);
    for (int64_t c = 1; c <= chunks; ++c) {
      float values[N];
      load_floats<N>(a.workspace, a.kept(chunk + c, 0) + column, values);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += values[k];
    }
    add_to_table<N>(a, id, column, sums);
  }
}

template <typename T>
int run_gather(const GatherRowsLaunch& a, void* stream) {
  const Gather<T> given{global<const T>(a.table),
                        global<const int64_t>(a.ids),
                        global<T>(a.y),
                        a.count,
                        a.row_bytes / int64_t{sizeof(T)},
                        a.table_rows};
  return launch("gather_rows", &gather_rows<T>, blocks_for(a.count, kWarps), kThreads, stream, given);
}

int gather(const GatherRowsLaunch& a, void* stream) {
  const auto all =
      reinterpret_cast<uintptr_t>(a.table) | reinterpret_cast<uintptr_t>(a.y) | static_cast<uintptr_t>(a.row_bytes);
  if (all % 16 == 0) return run_gather<Vector<uint32_t, 4>>(a, stream);
  if (all % 4 == 0) return run_gather<uint32_t>(a, stream);
  if (all % 2 == 0) return run_gather<uint16_t>(a, stream);
  return run_gather<uint8_t>(a, stream);
}

int sum(const SumRowsLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Sums<T> given{global<const T>(a.dy),
                        global<const int64_t>(a.ids),
                        global<const int64_t>(a.positions),
                        global<T>(a.table),
                        global<float>(a.workspace),
                        a.count,
                        a.width,
                        a.table_rows,
                        a.skipped};
    return by_flag(takes_vectors<T>(a.width, a.dy, a.table, a.workspace), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      int error = launch("sum_rows", &sum_runs<T, N>, blocks_for(a.count, kWarps), kThreads, stream, given);
      if (!error && a.count > kSumChunk)
        error = launch("sum_long_rows", &sum_long_runs<T, N>, blocks_for(a.count, kSumChunk * kWarps), kThreads, stream,
                       given);
      return error;
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(gather_rows, GatherRowsLaunch, gather);
ORTMODULE_CUDA_LAUNCH(sum_rows, SumRowsLaunch, sum);

}  // namespace ortmodule::cuda
