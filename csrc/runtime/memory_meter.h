// Counts the bytes of distinct storages that a frame holds beyond what it was given, step by step.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "runtime/executor.h"

namespace ortmodule {

class MemoryMeter {
 public:
  // Storages that are in the frame now (inputs, parameters, constants) are not counted.
  explicit MemoryMeter(const Frame& frame, bool count_present = false) {
    if (count_present) return;
    for (const at::Tensor& t : frame.slots)
      if (t.defined()) given_.insert(t.storage().unsafeGetStorageImpl());
  }

  void measure(const Frame& frame) {
    seen_.clear();
    int64_t total = 0;
    for (const at::Tensor& t : frame.slots) {
      if (!t.defined() || !t.has_storage()) continue;
      const auto* storage = t.storage().unsafeGetStorageImpl();
      if (!given_.count(storage) && seen_.insert(storage).second) total += static_cast<int64_t>(storage->nbytes());
    }
    now_ = total;
    peak_ = std::max(peak_, total);
  }

  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  std::unordered_set<const c10::StorageImpl*> given_, seen_;
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace ortmodule
