// CUDA kernel of CastAll: many tensors in one launch.
#include "cuda/tensor_list.cuh"
#include "ops/types/cast_all_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kMost = 128;

template <typename From, typename To>
struct Addresses {
  Global<const From> from[kMost];
  Global<To> to[kMost];
};

template <typename From, typename To>
struct Pair {
  Global<const From> from;
  Global<To> to;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[N];
    load_floats<N>(from, i, values);
    store_floats<N>(to, i, values);
  }
};

template <typename From, typename To, int N>
__global__ void __launch_bounds__(kListThreads) cast_all(ListBlocks<kMost> blocks, Addresses<From, To> addresses) {
  const int tensor = blocks.tensor();
  for_each_of_chunk<N>(blocks, tensor, Pair<From, To>{addresses.from[tensor], addresses.to[tensor]});
}

template <typename From, typename To>
int run_types(const CastAllLaunch& a, void* stream) {
  bool aligned = true;
  for (int64_t i = 0; i < a.tensors; ++i) aligned = aligned && takes_vectors<float>(0, a.from[i], a.to[i]);
  return by_flag(aligned, [&](auto vectors) {
    constexpr int N = !vectors() ? 1 : std::is_same_v<From, float> ? kVectorWidth<float> : kVectorWidth<To>;
    Addresses<From, To> addresses{};
    return launch_lists<N, kMost>(
        a.tensors, a.elements,
        [&](int place, int64_t tensor) {
          addresses.from[place] = global<const From>(a.from[tensor]);
          addresses.to[place] = global<To>(a.to[tensor]);
        },
        [&](const ListBlocks<kMost>& blocks, unsigned count) {
          return launch("cast_all", &cast_all<From, To, N>, count, kListThreads, stream, blocks, addresses);
        });
  });
}

int run(const CastAllLaunch& a, void* stream) {
  return by_element(a.from_type, [&](auto from) {
    return by_element(a.to_type, [&](auto to) {
      return run_types<typename decltype(from)::Type, typename decltype(to)::Type>(a, stream);
    });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(cast_all, CastAllLaunch, run);

}  // namespace ortmodule::cuda
