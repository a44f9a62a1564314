#include "base/small_blocks.h"

#include <array>
#include <bit>
#include <cstdint>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define ORTMODULE_HAS_MMAP
#endif

#include "base/asan.h"

namespace ortmodule {
namespace {

constexpr size_t kSlab = size_t{64} << 10, kSlabs = kSmallBlockRange / kSlab;
// Sizes: multiples of 64 up to 1024, then four between a power of two and the next.
constexpr size_t kFine = 16, kClasses = SmallBlocks::kClasses;
static_assert(kClasses == kFine + 12);
// What a thread keeps of one size; more than that goes to the other threads.
constexpr uint32_t kKept = 4096;

constexpr size_t class_for(size_t bytes) {
  if (bytes <= 1024) return (bytes + 63) / 64 - 1;
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power + 1)
  return kFine + static_cast<size_t>(power - 10) * 4 + (((bytes - 1) >> (power - 2)) & 3);
}

constexpr size_t bytes_of(size_t size_class) {
  if (size_class < kFine) return (size_class + 1) * 64;
  const size_t power = 10 + (size_class - kFine) / 4, quarter = (size_class - kFine) % 4;
  return (size_t{1} << power) + (quarter + 1) * (size_t{1} << (power - 2));
}

static_assert(class_for(SmallBlocks::kLargest) == kClasses - 1 && bytes_of(kClasses - 1) == SmallBlocks::kLargest);

struct Block {
  Block* next;
};

// What no thread has. Nobody waits for the lock: a process that was forked while another thread held it would wait for
// ever.
struct Shared {
  std::mutex mutex;
  std::array<Block*, kClasses> free{};
  size_t slabs = 0;  // in use
};
constinit std::array<uint8_t, kSlabs> class_of_slab{};

Shared& shared() {
  static Shared* const lives_on = new Shared;
  return *lives_on;
}

void map_range() {
#ifdef ORTMODULE_HAS_MMAP
  static const bool once = [] {
    void* base = mmap(nullptr, kSmallBlockRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return false;
    forbid_access(base, kSmallBlockRange);
    shared();
    small_block_range.store(static_cast<char*>(base), std::memory_order_release);
    return true;
  }();
  (void)once;
#endif
}

// Without a destructor, so that it serves as long as the thread does.
struct Local {
  std::array<Block*, kClasses> free;
  std::array<uint32_t, kClasses> count;
  bool on, over;
};
constinit thread_local Local local{};

// In a shared library each mention of a thread's variable is a call, which a compiler that knows the variable repeats
// in place of keeping what it got.
[[gnu::noinline]] Local* of_this_thread() { return &local; }

ORTMODULE_UNSEEN_BY_ASAN void push_shared(size_t size_class, Block* first, Block* last) {
  last->next = shared().free[size_class];
  shared().free[size_class] = first;
}

// Hands a thread's blocks on when it ends. If somebody holds the lock just then they are lost; the range is bounded.
struct HandOn {
  ORTMODULE_UNSEEN_BY_ASAN ~HandOn() {
    local.over = true;
    const std::unique_lock<std::mutex> lock(shared().mutex, std::try_to_lock);
    if (!lock) return;
    for (size_t c = 0; c < kClasses; ++c) {
      Block* const first = local.free[c];
      if (!first) continue;
      Block* last = first;
      while (last->next) last = last->next;
      push_shared(c, first, last);
      local.free[c] = nullptr;
    }
  }
  void touch() const {}
};
thread_local HandOn hand_on;

ORTMODULE_UNSEEN_BY_ASAN bool refill(size_t size_class) {
  const std::unique_lock<std::mutex> lock(shared().mutex, std::try_to_lock);
  if (!lock || local.over) return false;
  hand_on.touch();
  Shared& all = shared();
  Block*& list = local.free[size_class];
  if (all.free[size_class]) {
    for (; all.free[size_class] && local.count[size_class] < kKept; ++local.count[size_class]) {
      Block* const block = all.free[size_class];
      all.free[size_class] = block->next;
      block->next = list;
      list = block;
    }
    return true;
  }
  if (all.slabs == kSlabs) return false;
  char* const slab = small_block_range.load(std::memory_order_relaxed) + all.slabs * kSlab;
  class_of_slab[all.slabs++] = static_cast<uint8_t>(size_class);
  const size_t bytes = bytes_of(size_class), blocks = kSlab / bytes;
  for (size_t i = blocks; i-- > 0;) {
    auto* const block = reinterpret_cast<Block*>(slab + i * bytes);
    block->next = list;
    list = block;
  }
  local.count[size_class] += static_cast<uint32_t>(blocks);
  return true;
}

}  // namespace

ORTMODULE_UNSEEN_BY_ASAN void* SmallBlocks::take(size_t bytes) {
  Local* const mine = of_this_thread();
  if (!mine->on || bytes == 0 || bytes > kLargest) return nullptr;
  const size_t c = class_for(bytes);
  if (!mine->free[c] && !refill(c)) return nullptr;
  Block* const block = mine->free[c];
  mine->free[c] = block->next;
  --mine->count[c];
  allow_access(block, bytes);
  return block;
}

size_t SmallBlocks::class_of(size_t bytes) { return class_for(bytes); }

size_t SmallBlocks::class_of(const void* block) {
  const auto offset = static_cast<const char*>(block) - small_block_range.load(std::memory_order_relaxed);
  return class_of_slab[static_cast<size_t>(offset) / kSlab];
}

ORTMODULE_UNSEEN_BY_ASAN void SmallBlocks::give(void* data) noexcept {
  const size_t c = class_of(data);
  auto* const block = static_cast<Block*>(data);
  forbid_access(block, bytes_of(c));
  Local* const mine = of_this_thread();
  if (mine->over || mine->count[c] >= kKept) {
    const std::unique_lock<std::mutex> lock(shared().mutex, std::try_to_lock);
    if (lock) {
      push_shared(c, block, block);
      return;
    }
    if (mine->over) return;
  }
  if (!mine->free[c]) hand_on.touch();
  block->next = mine->free[c];
  mine->free[c] = block;
  ++mine->count[c];
}

void SmallBlocks::set_aside(const void* block) { forbid_access(block, bytes_of(class_of(block))); }

bool SmallBlocks::serve(bool on) {
  const bool before = local.on;
  if (on) map_range();
  local.on = on && small_block_range.load(std::memory_order_acquire) != nullptr;
  return before;
}

}  // namespace ortmodule
