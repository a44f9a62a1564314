// Gives blocks with known sizes and lifetimes their places in one arena. A pure function of its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortmodule {

struct BlockLifetime {
  size_t bytes = 0;
  // In any clock that grows: the block is in use in [first, end).
  uint32_t first = 0, end = 0;
};

struct Packing {
  std::vector<size_t> offsets;  // bytes from the arena's start, parallel to the blocks
  size_t bytes = 0;             // size of the arena
};

// Offsets such that no two blocks that live at the same time overlap; every offset and the total are multiples of
// `alignment`. Greedy by size: large blocks first, each into the smallest gap that holds it at its time (Pisarchyk and
// Lee, "Efficient memory management for deep neural net inference", 2020), tried with several measures of "large" and
// the smallest result kept. Worst case quadratic in the blocks.
Packing pack_memory(const std::vector<BlockLifetime>& blocks, size_t alignment = 64);

// The same in two arenas. Those of `apart` have all of the first one in the end: each has its own place there, which
// other blocks may use before it is made. So the second arena is free when nothing but those of `apart` lives, and the
// two together need hardly more than one would.
struct PackingApart {
  std::vector<size_t> offsets;  // from the start of the block's arena
  std::vector<char> in_first;   // parallel to the blocks
  size_t first_bytes = 0, second_bytes = 0;
};
PackingApart pack_memory_apart(const std::vector<BlockLifetime>& blocks, const std::vector<char>& apart,
                               size_t alignment = 64);

// The most bytes that live at one time: what no packing can undercut.
size_t live_peak(const std::vector<BlockLifetime>& blocks);

}  // namespace ortmodule
