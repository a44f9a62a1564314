// CUDA kernels of the norm over all gradients, and of their scaling: a launch each for a list.
//
// A block adds up a chunk of a gradient in floats; each block of the second launch adds up the sums of all blocks, in
// doubles and in one order, so that it knows the norm without a launch in between and each run has the same bits. Not
// here: which gradients make a list (device_norm.cpp).
#include "cuda/reduce.cuh"
#include "cuda/tensor_list.cuh"
#include "kernels/optimizer/norm_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kMost = 128;
constexpr int kAhead = 4;  // vectors of a thread that are on their way at once

template <typename G>
struct Gradients {
  Global<G> at[kMost];
};

template <NormKind kind>
__device__ __forceinline__ float joined(float sum, float x) {
  if constexpr (kind == NormKind::kOne) return sum + fabsf(x);
  if constexpr (kind == NormKind::kTwo) return fmaf(x, x, sum);
  return Maximum::of(sum, fabsf(x));
}

template <typename G, int N, NormKind kind>
__global__ void __launch_bounds__(kListThreads)
    gradient_parts(ListBlocks<kMost> blocks, Gradients<G> gradients, Global<float> parts, int64_t chunk) {
  constexpr int64_t kStride = int64_t{kListThreads} * N;
  const int tensor = blocks.tensor();
  const Global<G> from = gradients.at[tensor];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - blocks.first_blocks[tensor]) * chunk;
  const int64_t end = min(begin + chunk, blocks.counts[tensor]);
  float sums[kAhead] = {};
  int64_t i = begin + static_cast<int>(threadIdx.x) * N;
  for (; i + (kAhead - 1) * kStride + N <= end; i += kAhead * kStride) {
    float x[kAhead][N];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) load_floats<N>(from, i + a * kStride, x[a]);
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int k = 0; k < N; ++k) sums[a] = joined<kind>(sums[a], x[a][k]);
  }
  for (; i + N <= end; i += kStride) {
    float x[N];
    load_floats<N>(from, i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0] = joined<kind>(sums[0], x[k]);
  }
  for (; i < end; ++i) sums[0] = joined<kind>(sums[0], to_float(load(from, i)));
  using Operation = std::conditional_t<kind == NormKind::kMost, Maximum, Sum>;
  float sum = sums[0];
#pragma unroll
  for (int a = 1; a < kAhead; ++a) sum = Operation::of(sum, sums[a]);
  sum = Team<kListThreads>::reduce<Operation>(sum);
  if (threadIdx.x == 0) store(parts, int64_t{blockIdx.x}, sum);
}

struct Norm {
  NormKind kind;
  int count;
  Global<const float> parts;
  Global<float> to;

  explicit Norm(const NormLaunch& a)
      : kind(a.kind), count(static_cast<int>(a.count)), parts(global<const float>(a.parts)), to(global<float>(a.to)) {}

  // By all threads of a block.
  __device__ __forceinline__ float value() const {
    double total[1] = {};
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kListThreads) {
      const double part = load(parts, i);
      total[0] = kind == NormKind::kMost ? Maximum::of(total[0], part) : total[0] + part;
    }
    if (kind == NormKind::kMost)
      Team<kListThreads>::reduce<Maximum>(total);
    else
      Team<kListThreads>::reduce<Sum>(total);
    return static_cast<float>(kind == NormKind::kTwo ? sqrt(total[0]) : total[0]);
  }
};

__global__ void __launch_bounds__(kListThreads) gradient_norm(Norm norm) {
  const float value = norm.value();
  if (threadIdx.x == 0) store(norm.to, 0, value);
}

template <typename G>
struct Scaled {
  Global<G> gradient;
  float factor;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    float x[N];
    load_floats<N>(gradient, i, x);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] *= factor;
    store_floats<N>(gradient, i, x);
  }
};

template <typename G, int N>
__global__ void __launch_bounds__(kListThreads)
    scale_gradients(ListBlocks<kMost> blocks, Gradients<G> gradients, Norm norm, float max_norm, float factor,
                    int64_t chunk) {
  if (norm.parts) {
    const float value = norm.value();
    if (norm.to && blockIdx.x == 0 && threadIdx.x == 0) store(norm.to, 0, value);
    factor = max_norm / (value + 1e-6f);
    if (factor >= 1.0f) return;  // not where it is NaN
  }
  const int tensor = blocks.tensor();
  for_each_of_chunk<N>(blocks, tensor, Scaled<G>{gradients.at[tensor], factor}, chunk);
}

// Calls run(tag of the type, width, blocks, block count, gradients) for each list.
template <typename Run>
int run_lists(const GradientLists& lists, Run run) {
  bool aligned = true;
  for (int64_t i = 0; i < lists.tensors; ++i) aligned = aligned && takes_vectors<float>(0, lists.gradients[i]);
  return by_element(lists.type, [&](auto tag) {
    using G = typename decltype(tag)::Type;
    return by_flag(aligned, [&](auto vectors) {
      constexpr int N = vectors() ? kVectorWidth<G> : 1;
      Gradients<G> gradients{};
      return launch_lists<N, kMost>(
          lists.tensors, lists.elements,
          [&](int place, int64_t tensor) { gradients.at[place] = global<G>(lists.gradients[tensor]); },
          [&](const ListBlocks<kMost>& blocks, unsigned count) {
            return run(tag, std::integral_constant<int, N>(), blocks, count, gradients);
          },
          lists.chunk);
    });
  });
}

template <NormKind kind>
int run_kind(const NormPartsLaunch& a, void* stream) {
  int64_t first = 0;
  return run_lists(a.lists, [&](auto tag, auto width, const auto& blocks, unsigned count, const auto& gradients) {
    using G = typename decltype(tag)::Type;
    const Global<float> parts = global<float>(a.parts + first);
    first += count;
    return launch("gradient_parts", &gradient_parts<G, width(), kind>, count, kListThreads, stream, blocks, gradients,
                  parts, a.lists.chunk);
  });
}

int run_parts(const NormPartsLaunch& a, void* stream) {
  if (a.kind == NormKind::kOne) return run_kind<NormKind::kOne>(a, stream);
  return a.kind == NormKind::kTwo ? run_kind<NormKind::kTwo>(a, stream) : run_kind<NormKind::kMost>(a, stream);
}

int run_norm(const NormLaunch& a, void* stream) {
  return launch("gradient_norm", &gradient_norm, 1, kListThreads, stream, Norm(a));
}

int run_scale(const ScaleLaunch& a, void* stream) {
  return run_lists(a.lists, [&](auto tag, auto width, const auto& blocks, unsigned count, const auto& gradients) {
    using G = typename decltype(tag)::Type;
    return launch("scale_gradients", &scale_gradients<G, width()>, count, kListThreads, stream, blocks, gradients,
                  Norm(a.norm), a.max_norm, a.factor, a.lists.chunk);
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(gradient_parts, NormPartsLaunch, run_parts);
ORTMODULE_CUDA_LAUNCH(gradient_norm, NormLaunch, run_norm);
ORTMODULE_CUDA_LAUNCH(scale_gradients, ScaleLaunch, run_scale);

}  // namespace ortmodule::cuda
