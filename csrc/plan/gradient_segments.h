// Divides a backward plan into segments, so that gradients reach autograd while later ones are still computed.
//
// Every segment costs an autograd node, so that one is closed only when its gradients have enough bytes to be worth
// it: a bucket of DistributedDataParallel, say, whose first one is 1 MiB. A pure function of sizes and places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortmodule {

// What a closed segment holds at least.
constexpr int64_t kSegmentBytes = 1 << 20;

// The segment of each gradient. `ready[k]`: how many steps of the plan must have run before gradient k is final;
// `bytes[k]`: its size, 0 where it is not known. Gradients that are ready together share a segment.
std::vector<size_t> gradient_segments(const std::vector<size_t>& ready, const std::vector<int64_t>& bytes,
                                      int64_t least_bytes = kSegmentBytes);

}  // namespace ortmodule
