// Kernels over the elements of many tensors at once: a block has a chunk of one of them, so that a step over hundreds
// of small tensors is a launch or two.
//
// A list is a parameter of the kernel, which may have 4 KB: what is longer is several launches. Addresses of the
// tensors stand beside the list, in a struct of the kernel's. Not here: what is done to an element.
#pragma once

#include "cuda/elements.cuh"

namespace ortmodule::cuda {

constexpr int kListThreads = 256, kListVectors = 4;  // vectors of a chunk that one thread has

template <int N>
constexpr int64_t kListChunk = int64_t{kListThreads} * kListVectors * N;

// Which block has what. kMost is a power of two.
template <int kMost>
struct ListBlocks {
  int64_t counts[kMost];    // elements
  int first_blocks[kMost];  // of those behind the last tensor: never reached

  // The tensor of this block.
  __device__ __forceinline__ int tensor() const {
    const int block = static_cast<int>(blockIdx.x);
    int found = 0;
#pragma unroll
    for (int step = kMost / 2; step > 0; step /= 2)
      if (first_blocks[found + step] <= block) found += step;
    return found;
  }
};

// Calls to.at<N>(i) for the elements of this block's chunk of the tensor, and to.at<1>(i) for those that fill no
// vector. `chunk`: as the list was cut.
template <int N, int kMost, typename To>
__device__ __forceinline__ void for_each_of_chunk(const ListBlocks<kMost>& blocks, int tensor, const To& to,
                                                  int64_t chunk = kListChunk<N>) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - blocks.first_blocks[tensor]) * chunk;
  const int64_t end = min(begin + chunk, blocks.counts[tensor]);
  for (int64_t i = begin + static_cast<int>(threadIdx.x) * N; i < end; i += kListThreads * N) {
    if (i + N <= end) {
      to.template at<N>(i);
    } else {
      for (int64_t k = i; k < end; ++k) to.template at<1>(k);
    }
  }
}

// Puts `count` tensors in lists of at most kMost, and queues each list: add(place, tensor) writes the tensor's
// addresses, run(blocks, block_count) launches. Empty tensors are left out. `chunk`: elements of a block, a multiple of
// kListThreads * N.
template <int N, int kMost, typename Add, typename Run>
int launch_lists(int64_t count, const int64_t* elements, Add add, Run run, int64_t chunk = kListChunk<N>) {
  ListBlocks<kMost> blocks{};
  int used = 0, next = 0;
  const auto flush = [&] {
    for (int place = used; place < kMost; ++place) blocks.first_blocks[place] = 0x7fffffff;
    const int error = used ? run(blocks, static_cast<unsigned>(next)) : 0;
    used = next = 0;
    return error;
  };
  for (int64_t tensor = 0; tensor < count; ++tensor) {
    if (elements[tensor] == 0) continue;
    if (used == kMost)
      if (const int error = flush()) return error;
    add(used, tensor);
    blocks.counts[used] = elements[tensor];
    blocks.first_blocks[used++] = next;
    next += static_cast<int>((elements[tensor] + chunk - 1) / chunk);
  }
  return flush();
}

}  // namespace ortmodule::cuda
