// Small blocks of CPU memory for the tensors that a run makes: their elements, and the objects themselves.
//
// torch asks malloc for aligned memory, which goes past malloc's fast lists: some 0.2 us for each tensor made and 0.1
// for each freed, more than the arithmetic of a narrow layer. Inside a SmallBlockScope (device/small_block_scope.h)
// such requests are served from lists of equal blocks, one set per thread, without a lock. Blocks may be freed
// anywhere, on any thread, long after the run (a gradient is). They lie in one range of addresses, which tells them
// from torch's.
//
// The range is mapped at the first scope and bounded; when it is used up, torch's allocator serves. Not here: large
// blocks (cpu_allocations.h, which asks this first).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ortmodule {

// Where all of them lie, once it is mapped. A step asks hundreds of times whether something does.
constexpr size_t kSmallBlockRange = size_t{32} << 20;
inline std::atomic<char*> small_block_range{nullptr};

class SmallBlocks {
 public:
  static constexpr size_t kLargest = 8192, kAlignment = 64, kClasses = 28;

  // Which list of equal blocks serves `bytes` (1 to kLargest), or a block that take() gave is from: below kClasses.
  static size_t class_of(size_t bytes);
  static size_t class_of(const void* block);

  // A block of at least `bytes`; null outside a scope, for 0 or more than kLargest bytes, or when none is left.
  static void* take(size_t bytes);
  static bool owns(const void* data) {
    const auto begin = reinterpret_cast<uintptr_t>(small_block_range.load(std::memory_order_relaxed));
    return begin && reinterpret_cast<uintptr_t>(data) - begin < kSmallBlockRange;  // below it the difference is huge
  }
  // For a block that take() gave.
  static void give(void* data) noexcept;
  // Nobody may touch a block that take() gave until allow_access (base/asan.h), which AddressSanitizer watches over.
  static void set_aside(const void* block);
  // Whether take() serves this thread from now on, and whether it did before. SmallBlockScope's business.
  static bool serve(bool on);
};

}  // namespace ortmodule
