// Counts the bytes of distinct storages that a frame holds beyond what it was given, step by step.
//
// Only the slots that a step touched are looked at, so that a measured run costs what its steps cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/executor.h"

namespace ortmodule {

class MemoryMeter {
 public:
  // Storages that are in the frame now are counted only when `count_present`.
  MemoryMeter(const Frame& frame, bool count_present) : held_(frame.slots.size(), nullptr) {
    for (size_t slot = 0; slot < frame.slots.size(); ++slot) {
      refresh(frame, static_cast<int>(slot));
      if (!count_present && held_[slot]) storages_[held_[slot]].bytes = 0;
    }
    now_ = 0;
    for (const auto& [storage, entry] : storages_) now_ += entry.bytes;
    peak_ = now_;
  }

  // After a step's kernel, before its releases. What the step before released goes first: its addresses may be in use
  // again.
  void after_step(const Step& step, const Frame& frame) {
    for (int slot : released_) refresh(frame, slot);
    for (int slot : step.inputs) refresh(frame, slot);
    for (int slot : step.outputs) refresh(frame, slot);
    released_ = step.release;
    peak_ = std::max(peak_, now_);
  }

  void finish(const Frame& frame) {
    for (int slot : released_) refresh(frame, slot);
    released_.clear();
  }

  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  struct Entry {
    int64_t bytes = 0;
    int slots = 0;
  };

  void refresh(const Frame& frame, int slot) {
    if (slot < 0) return;
    const at::Tensor& t = frame.slots[slot];
    const c10::StorageImpl* storage = t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
    if (held_[slot] == storage) return;
    if (held_[slot]) {
      auto it = storages_.find(held_[slot]);
      if (--it->second.slots == 0) {
        now_ -= it->second.bytes;
        storages_.erase(it);
      }
    }
    held_[slot] = storage;
    if (!storage) return;
    Entry& entry = storages_[storage];
    if (entry.slots++ == 0) {
      entry.bytes = static_cast<int64_t>(storage->nbytes());
      now_ += entry.bytes;
    }
  }

  std::vector<const c10::StorageImpl*> held_;  // by slot
  std::unordered_map<const c10::StorageImpl*, Entry> storages_;
  std::vector<int> released_;
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace ortmodule
