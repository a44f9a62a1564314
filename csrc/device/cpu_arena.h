// One range of CPU memory whose pages stay, and the free ranges in it.
//
// torch's CPU allocator hands large blocks back to the system when they are freed, so that each step faults all its
// pages in again; that costs eager 1.4x. An arena is mapped once. Who lives where is decided outside
// (runtime/step_memory.h): at a given offset, or in the smallest free range that fits. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace ortmodule {

class CpuArena {
 public:
  static constexpr size_t kAlignment = 64;

  // Maps `bytes`; pages cost memory when they are first written. Throws kRuntime when the system refuses.
  explicit CpuArena(size_t bytes);
  ~CpuArena();
  CpuArena(const CpuArena&) = delete;
  CpuArena& operator=(const CpuArena&) = delete;

  // A block in the smallest free range that holds it; null when there is none.
  void* allocate(size_t bytes);
  // The block [offset, offset + bytes); null when any of it is in use.
  void* allocate_at(size_t offset, size_t bytes);
  void free(void* data, size_t bytes);

  // Gives the pages of what is free from `offset` on back to the system; they come again when they are written.
  void release_pages(size_t offset = 0);

  size_t capacity() const { return capacity_; }
  size_t in_use() const;

 private:
  void* take(std::map<size_t, size_t>::iterator range, size_t offset, size_t bytes);
  void add_range(size_t offset, size_t bytes);
  void drop_range(std::map<size_t, size_t>::iterator range);

  char* base_ = nullptr;
  size_t capacity_, mapped_;
  mutable std::mutex mutex_;
  size_t in_use_ = 0;
  std::map<size_t, size_t> free_;                 // offset -> bytes
  std::set<std::pair<size_t, size_t>> by_bytes_;  // (bytes, offset)
};

// Gives the pages that are free in malloc's heap back to the system, where its malloc can.
void trim_heap();

}  // namespace ortmodule
