// CUDA kernel of a chunk of LinearCrossEntropy: the losses of its rows, and scores that become their gradient in place.
//
// A row is a block's. It is held in registers as it lies in memory where it fits (57,344 elements of 16 bits), so that
// scores are read once and written once; a longer row is read again for each of three passes. Rows begin at multiples
// of 16 bytes where their stride allows it, whatever their length: what lies behind a row is nobody's. Arithmetic, not
// memory, is what a row of 16-bit scores costs, so that what one element needs and others do not (the label's, those
// behind the last class) is asked of a vector, and exponentials are of base 2.
#include "cuda/elements.cuh"
#include "cuda/reduce.cuh"
#include "ops/loss/chunk_loss_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 1024, kHeldVectors = 7;

template <typename T>
struct Chunk {
  Global<T> scores;
  Global<const int64_t> labels;
  Global<const float> weights, total;
  Global<float> losses;
  int64_t rows, stride, ignore_index;
  int classes;
  bool gradient;
};

// The compiler takes them for other values from here on: else it keeps 16-bit elements as floats too, from one pass to
// the next, in twice the registers.
template <typename T, int N>
__device__ __forceinline__ void forget([[maybe_unused]] Vector<T, N>& values) {
#ifdef __CUDACC__
  if constexpr (sizeof(values) == kVectorBytes && sizeof(T) == 2) {
    auto* const words = reinterpret_cast<uint32_t*>(&values);
    asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
#endif
}

template <typename T, int N, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) chunk_loss(Chunk<T> a) {
  using Threads = Team<kThreads>;
  const int64_t row = blockIdx.x, first = row * a.stride;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t label = load(a.labels, row);
  const bool ignored = label == a.ignore_index;
  if (!ignored && (label < 0 || label >= a.classes)) __trap();
  // Calls f(elements, column) for each vector of this thread's.
  Vector<T, N> held[kHeld > 0 ? kHeld : 1];
  constexpr float kLog2E = 1.44269504088896341f;
  const auto whole = [&](int column) { return N == 1 || column + N <= a.classes; };
  const auto each = [&](auto f) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        const int column = (v * kThreads + thread) * N;
        if (column < a.classes) f(held[v], column);
      }
    } else {
      for (int column = thread * N; column < a.classes; column += kThreads * N) {
        Vector<T, N> values = load_vector<N>(a.scores, first + column);
        f(values, column);
      }
    }
  };
  if (ignored) {  // by all of the block
    if (thread == 0) store(a.losses, row, 0.0f);
    if (!a.gradient) return;
    const Vector<T, N> nothing{};
    for (int column = thread * N; column < a.classes; column += kThreads * N)
      store_vector<N>(a.scores, first + column, nothing);
    return;
  }
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      const int column = (v * kThreads + thread) * N;
      if (column >= a.classes) continue;
      held[v] = load_vector<N>(a.scores, first + column);
      if (!whole(column)) {  // nothing adds to a maximum or a sum
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (column + k >= a.classes) held[v].at[k] = from_float<T>(Maximum::kNothing);
      }
    }
  }
  const auto counts = [&](int column, int k) { return kHeld > 0 || N == 1 || column + k < a.classes; };
  // A NaN is lost here, and comes back in the sum.
  float largest = Maximum::kNothing;
  each([&](Vector<T, N>& values, int column) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (counts(column, k)) largest = fmaxf(largest, to_float(values.at[k]));
    forget(values);
  });
  largest = Threads::template reduce<Maximum>(largest);
  float sum = 0;
  each([&](Vector<T, N>& values, int column) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (counts(column, k)) sum += exp2f((to_float(values.at[k]) - largest) * kLog2E);
    forget(values);
  });
  const float log_sum = logf(Threads::template reduce<Sum>(sum));
  const float weight = a.weights ? load(a.weights, label) : 1.0f;
  if (thread == 0) {
    const float score = to_float(load(a.scores, first + label));
    store(a.losses, row, (largest + log_sum - score) * weight);
  }
  if (!a.gradient) return;
  __syncthreads();  // the label's score was read
  const float factor = a.total ? weight / load(a.total, 0) : weight;
  const float down = -log_sum * kLog2E;
  const auto share = [&](float score) { return exp2f(fmaf(score - largest, kLog2E, down)) * factor; };
  each([&](Vector<T, N>& values, int column) {
    Vector<T, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) made.at[k] = from_float<T>(share(to_float(values.at[k])));
    const auto at = static_cast<int>(label) - column;
    if (at >= 0 && at < N) {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k == at) made.at[k] = from_float<T>(share(to_float(values.at[k])) - factor);
    }
    store_vector<N>(a.scores, first + column, made);
  });
}

int chunk(const ChunkLossLaunch& a, void* stream) {
  return by_element(a.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Chunk<T> given{global<T>(a.scores),
                         global<const int64_t>(a.labels),
                         global<const float>(a.weights),
                         global<const float>(a.total),
                         global<float>(a.losses),
                         a.rows,
                         a.stride,
                         a.ignore_index,
                         static_cast<int>(a.classes),
                         a.gradient};
    return by_flag(takes_vectors<T>(a.stride, a.scores), [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<T> : 1;
      const auto blocks = static_cast<unsigned>(a.rows);
      if (a.classes <= int64_t{kThreads} * N * kHeldVectors)
        return launch("chunk_loss", &chunk_loss<T, N, kHeldVectors>, blocks, kThreads, stream, given);
      return launch("chunk_loss", &chunk_loss<T, N, 0>, blocks, kThreads, stream, given);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(chunk_loss, ChunkLossLaunch, chunk);

}  // namespace ortmodule::cuda
