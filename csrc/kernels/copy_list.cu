// CUDA kernel of copies of many tensors in one launch. Not here: which may be copied together (copy_list.cpp).
#include "cuda/tensor_list.cuh"
#include "kernels/copy_list_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kMost = 128;

struct Addresses {
  Global<const uint32_t> from[kMost];
  Global<uint32_t> to[kMost];
};

struct Pair {
  Global<const uint32_t> from;
  Global<uint32_t> to;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    store_vector<N>(to, i, load_vector<N>(from, i));
  }
};

template <int N>
__global__ void __launch_bounds__(kListThreads) copy_list(ListBlocks<kMost> blocks, Addresses addresses) {
  const int tensor = blocks.tensor();
  for_each_of_chunk<N>(blocks, tensor, Pair{addresses.from[tensor], addresses.to[tensor]});
}

int run(const CopyListLaunch& a, void* stream) {
  bool aligned = true;
  for (int64_t i = 0; i < a.tensors; ++i) aligned = aligned && takes_vectors<uint32_t>(0, a.from[i], a.to[i]);
  return by_flag(aligned, [&](auto vectors) {
    constexpr int N = vectors() ? kVectorWidth<uint32_t> : 1;
    Addresses addresses{};
    return launch_lists<N, kMost>(
        a.tensors, a.words,
        [&](int place, int64_t tensor) {
          addresses.from[place] = global<const uint32_t>(a.from[tensor]);
          addresses.to[place] = global<uint32_t>(a.to[tensor]);
        },
        [&](const ListBlocks<kMost>& blocks, unsigned count) {
          return launch("copy_list", &copy_list<N>, count, kListThreads, stream, blocks, addresses);
        });
  });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(copy_list, CopyListLaunch, run);

}  // namespace ortmodule::cuda
