// Global memory as simulated kernels reach it: every access is checked and counted.
//
// An address comes with the extent of the buffer that it points into, where somebody knows it (Reach): an access
// outside, or one that is not aligned as a GPU demands, is an error. For a kernel's traffic the sectors of 32 bytes
// that each request of a warp touches are counted, beside the fewest that its bytes would fit into. The lanes of a warp
// do not run side by side here: their nth accesses at the same place in the source make one request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <source_location>
#include <vector>

#include "cuda/simt/block.h"

namespace ortmodule::cuda::simt {

constexpr uint64_t kSector = 32;

// The buffer around an address: where the kernel finds the address, and the buffer's first byte and end there.
struct Reached {
  char* at;
  const char *begin, *end;
};

// What tells it. By default every address is what it says, and nothing is known of the buffer.
using Reach = Reached (*)(const void* address);
void set_reach(Reach reach);
Reached reach(const void* address);

struct Traffic {
  uint64_t loaded = 0, stored = 0;                 // bytes
  uint64_t requests = 0, touched = 0, needed = 0;  // sectors; counted on request
  void add(const Traffic& other);
};

// Where in the source an access stands.
struct Site {
  uint64_t number;
  static constexpr Site here(std::source_location at = std::source_location::current()) {
    uint64_t hash = at.line() * 1000003ull + at.column();
    for (const char* c = at.file_name(); *c; ++c) hash = hash * 131 + static_cast<unsigned char>(*c);
    return {hash};
  }
};

class AccessLog {
 public:
  static AccessLog& of_this_thread();
  void start(bool count_sectors);
  void add(const void* address, size_t bytes, bool store, Site site);
  void end_block();
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Request {
    std::vector<std::pair<uint64_t, uint32_t>> parts;  // address, bytes
  };
  // By warp and site; the place in the list is how often a lane was there.
  struct Place {
    std::vector<Request> requests;
    uint32_t times[kWarp] = {};
  };
  Traffic traffic_;
  bool count_sectors_ = false;
  std::map<std::pair<unsigned, uint64_t>, Place> places_;
};

// What a kernel's argument points to: T elements, checked. Made on the host when the kernel is launched.
template <typename T>
class Global {
 public:
  Global() = default;
  Global(std::nullptr_t) {}
  explicit Global(const void* address) {
    if (!address) return;
    const Reached found = reach(address);
    at_ = reinterpret_cast<T*>(found.at);
    begin_ = found.begin;
    end_ = found.end;
  }
  explicit operator bool() const { return at_ != nullptr; }
  Global operator+(int64_t elements) const {
    Global moved = *this;
    moved.at_ += elements;
    return moved;
  }

  // `bytes` at element i.
  T* access(int64_t i, size_t bytes, bool store, Site site) const {
    const uint64_t address = reinterpret_cast<uint64_t>(at_) + static_cast<uint64_t>(i) * sizeof(T);
    const char* const from = reinterpret_cast<const char*>(address);
    if (!at_) fail("an address that is null is accessed");
    if (end_ && (from < begin_ || from + bytes > end_))
      fail(std::string(store ? "writes " : "reads ") + std::to_string(bytes) + " bytes at " +
           std::to_string(from - begin_) + " of a buffer of " + std::to_string(end_ - begin_));
    if (address % bytes) fail("an access of " + std::to_string(bytes) + " bytes is not aligned");
    AccessLog::of_this_thread().add(from, bytes, store, site);
    return reinterpret_cast<T*>(address);
  }

 private:
  T* at_ = nullptr;
  const char *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace ortmodule::cuda::simt
