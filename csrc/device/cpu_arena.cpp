#include "device/cpu_arena.h"

#include <algorithm>

#include "base/asan.h"
#include "base/status.h"

#ifdef __linux__
#include <sys/mman.h>
#else
#include <cstdlib>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ortmodule {
namespace {

// Large pages where the kernel gives them on request: fewer faults and misses of the address cache.
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

CpuArena::CpuArena(size_t bytes) : capacity_(round_up(bytes, kAlignment)), mapped_(round_up(capacity_, 4096)) {
#ifdef __linux__
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ORTMODULE_CHECK(memory != MAP_FAILED, kRuntime, "the system refused ", mapped_, " bytes for a step's memory");
  if (mapped_ >= 8 * kHugePage) madvise(memory, mapped_, MADV_HUGEPAGE);
#else
  void* memory = std::aligned_alloc(4096, mapped_);
  ORTMODULE_CHECK(memory, kRuntime, "the system refused ", mapped_, " bytes for a step's memory");
#endif
  base_ = static_cast<char*>(memory);
  forbid_access(base_, mapped_);
  add_range(0, capacity_);
}

CpuArena::~CpuArena() {
  allow_access(base_, mapped_);  // whoever is at these addresses next
#ifdef __linux__
  munmap(base_, mapped_);
#else
  std::free(base_);
#endif
}

size_t CpuArena::in_use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

void CpuArena::release_pages(size_t offset) {
#ifdef __linux__
  constexpr size_t kPage = 4096;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [begin, bytes] : free_) {
    const size_t first = round_up(std::max(begin, offset), kPage);
    const size_t end = begin + bytes == capacity_ ? mapped_ : (begin + bytes) / kPage * kPage;
    if (first < end) madvise(base_ + first, end - first, MADV_DONTNEED);
  }
#else
  static_cast<void>(offset);
#endif
}

void CpuArena::add_range(size_t offset, size_t bytes) {
  if (bytes == 0) return;
  free_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
}

void CpuArena::drop_range(std::map<size_t, size_t>::iterator range) {
  by_bytes_.erase({range->second, range->first});
  free_.erase(range);
}

void* CpuArena::take(std::map<size_t, size_t>::iterator range, size_t offset, size_t wanted) {
  const size_t bytes = round_up(wanted, kAlignment);
  const auto [begin, size] = *range;
  drop_range(range);
  add_range(begin, offset - begin);
  add_range(offset + bytes, begin + size - offset - bytes);
  in_use_ += bytes;
  allow_access(base_ + offset, wanted);
  return base_ + offset;
}

void* CpuArena::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto fit = by_bytes_.lower_bound({round_up(bytes, kAlignment), 0});
  if (fit == by_bytes_.end()) return nullptr;
  const size_t offset = fit->second;
  return take(free_.find(offset), offset, bytes);
}

void* CpuArena::allocate_at(size_t offset, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto range = free_.upper_bound(offset);
  if (range == free_.begin()) return nullptr;
  --range;
  if (range->first + range->second < offset + round_up(bytes, kAlignment)) return nullptr;
  return take(range, offset, bytes);
}

void CpuArena::free(void* data, size_t bytes) {
  size_t offset = static_cast<char*>(data) - base_;
  bytes = round_up(bytes, kAlignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  forbid_access(data, bytes);
  in_use_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      drop_range(before);
    }
  }
  next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    drop_range(next);
  }
  add_range(offset, bytes);
}

}  // namespace ortmodule
