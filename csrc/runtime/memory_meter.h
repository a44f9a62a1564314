// Counts the bytes of distinct storages that a frame holds beyond what it was given, step by step, and remembers which
// values held them.
//
// Only the slots that a step touched are looked at, so that a measured run costs what its steps cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/executor.h"

namespace ortmodule {

// A storage and the slots that held it in turn: a value, its views, and what was written over it.
struct HeldBytes {
  std::vector<int> slots;
  int64_t bytes = 0;
};

class MemoryMeter {
 public:
  // What is in the frame now counts where its slot is not `given` by the caller.
  MemoryMeter(const Frame& frame, const std::vector<char>& given) : held_(frame.slots.size(), nullptr) {
    for (const bool pass_given : {true, false})
      for (size_t slot = 0; slot < frame.slots.size(); ++slot) {
        const bool is_given = slot < given.size() && given[slot];
        if (is_given == pass_given) refresh(frame, static_cast<int>(slot), !is_given);
      }
    peak_ = now_;
  }

  // After a step's kernel, before its releases. What the step before released goes first: its addresses may be in use
  // again.
  void after_step(const Step& step, const Frame& frame) {
    for (int slot : released_) refresh(frame, slot);
    for (int slot : step.inputs) refresh(frame, slot);
    for (int slot : step.outputs) refresh(frame, slot);
    released_ = step.release;
    if (now_ > peak_) {
      peak_ = now_;
      peak_at_ = clock_;
    }
    ++clock_;
  }

  void finish(const Frame& frame) {
    for (int slot : released_) refresh(frame, slot);
    released_.clear();
  }

  // Of the storages that these slots hold now.
  int64_t held_by(const std::vector<int>& slots) const {
    std::unordered_set<const c10::StorageImpl*> seen;
    int64_t bytes = 0;
    for (int slot : slots)
      if (held_[slot] && seen.insert(held_[slot]).second) bytes += storages_.at(held_[slot]).bytes;
    return bytes;
  }
  int64_t peak() const { return peak_; }

  // What was held when the total was largest, in the order of its making.
  std::vector<HeldBytes> held_at_peak() const {
    std::vector<HeldBytes> out;
    for (const Life& life : lives_)
      if (life.begin <= peak_at_ && peak_at_ < life.end) out.push_back({life.slots, life.bytes});
    return out;
  }

 private:
  struct Entry {
    int64_t bytes = 0;
    int slots = 0;
    size_t life = 0;
  };
  // In [begin, end) of a clock that counts steps; what was there before the first step has begun at 0.
  struct Life {
    std::vector<int> slots;
    int64_t bytes;
    size_t begin, end;
  };

  void refresh(const Frame& frame, int slot, bool counted = true) {
    if (slot < 0) return;
    const at::Tensor& t = frame.slots[slot];
    const c10::StorageImpl* storage = t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
    if (held_[slot] == storage) return;
    if (held_[slot]) {
      auto it = storages_.find(held_[slot]);
      if (--it->second.slots == 0) {
        now_ -= it->second.bytes;
        if (it->second.bytes) lives_[it->second.life].end = clock_;
        storages_.erase(it);
      }
    }
    held_[slot] = storage;
    if (!storage) return;
    Entry& entry = storages_[storage];
    if (entry.slots++ == 0 && counted) {
      entry.bytes = static_cast<int64_t>(storage->nbytes());
      entry.life = lives_.size();
      if (entry.bytes) lives_.push_back({{}, entry.bytes, clock_, SIZE_MAX});
      now_ += entry.bytes;
    }
    if (entry.bytes) lives_[entry.life].slots.push_back(slot);
  }

  std::vector<const c10::StorageImpl*> held_;  // by slot
  std::unordered_map<const c10::StorageImpl*, Entry> storages_;
  std::vector<Life> lives_;
  std::vector<int> released_;
  int64_t now_ = 0, peak_ = 0;
  size_t clock_ = 0, peak_at_ = 0;
};

}  // namespace ortmodule
