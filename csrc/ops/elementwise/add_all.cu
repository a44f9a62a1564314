// CUDA kernel of AddAll: many tensors in one launch, a thread for an element. They are a number each.
#include "cuda/tensor_list.cuh"
#include "ops/elementwise/add_all_launch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kMost = 128;

struct Addresses {
  Global<const int64_t> from[kMost];
  Global<int64_t> to[kMost];
};

struct Added {
  Global<const int64_t> from;
  Global<int64_t> to;
  int64_t value;

  template <int N>
  __device__ __forceinline__ void at(int64_t i) const {
    store(to, i, load(from, i) + value);
  }
};

__global__ void __launch_bounds__(kListThreads) add_all(ListBlocks<kMost> blocks, Addresses addresses, int64_t value) {
  const int tensor = blocks.tensor();
  for_each_of_chunk<1>(blocks, tensor, Added{addresses.from[tensor], addresses.to[tensor], value});
}

int run(const AddAllLaunch& a, void* stream) {
  Addresses addresses{};
  return launch_lists<1, kMost>(
      a.tensors, a.elements,
      [&](int place, int64_t tensor) {
        addresses.from[place] = global<const int64_t>(a.from[tensor]);
        addresses.to[place] = global<int64_t>(a.to[tensor]);
      },
      [&](const ListBlocks<kMost>& blocks, unsigned count) {
        return launch("add_all", &add_all, count, kListThreads, stream, blocks, addresses, a.value);
      });
}

}  // namespace

ORTMODULE_CUDA_LAUNCH(add_all, AddAllLaunch, run);

}  // namespace ortmodule::cuda
