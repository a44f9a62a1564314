// Shared memory of the block that runs: each element knows whether it was written, by whom, and since which barrier.
//
// Two threads that access an element, one of them writing, need a barrier in between: of the block, or of the warp
// where they are of one (a shuffle is none: it orders no memory). An element that was not written may not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "cuda/simt/block.h"

namespace ortmodule::cuda::simt {

constexpr size_t kMostSharedBytes = 48 << 10;  // what every architecture gives without being asked

struct SharedCell {
  static constexpr int kNone = -1, kSeveral = -2;
  int writer = kNone, reader = kNone, reading_warp = kNone;
  uint32_t write_block = 0, write_warp = 0, read_block = 0, read_warp = 0;  // waits at the time
};

// Of one declaration in this block: the same for all its threads, made when the first of them comes to it.
struct SharedMemory {
  char* bytes;
  SharedCell* cells;
};
SharedMemory shared_memory(const void* declaration, size_t elements, size_t element_bytes);
// What the launch asked for beside the declarations.
SharedMemory dynamic_shared_memory(size_t element_bytes, size_t* elements);

void start_shared_memory();
void set_dynamic_shared(size_t bytes);

void note_read(SharedCell& cell);
void note_write(SharedCell& cell);

template <typename T>
class SharedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  SharedArray(SharedMemory memory, size_t count) : memory_(memory), count_(count) {}

  class Element {
   public:
    Element(T* at, SharedCell* cell) : at_(at), cell_(cell) {}
    operator T() const {
      note_read(*cell_);
      return *at_;
    }
    const Element& operator=(T value) const {
      note_write(*cell_);
      *at_ = value;
      return *this;
    }
    const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
    const Element& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }

   private:
    T* at_;
    SharedCell* cell_;
  };

  Element operator[](int64_t i) const {
    if (i < 0 || static_cast<size_t>(i) >= count_)
      fail("element " + std::to_string(i) + " of " + std::to_string(count_) + " in shared memory");
    return {reinterpret_cast<T*>(memory_.bytes) + i, memory_.cells + i};
  }

 private:
  SharedMemory memory_;
  size_t count_;
};

}  // namespace ortmodule::cuda::simt
