// What a half of a session's first run held when it held most: measured once, by one of the threads that run it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/memory_meter.h"

namespace ortmodule {

struct MemoryPeak {
  int64_t bytes = 0;            // beyond what was given
  int64_t saved = 0;            // of what stays for backward, at the end
  std::vector<HeldBytes> held;  // what `bytes` is made up of
};

class FirstRun {
 public:
  // Whether the caller is the one to measure: it makes a Measurement.
  bool claim() { return !claimed_.load(std::memory_order_relaxed) && !claimed_.exchange(true); }

  // Empty before the first run is through.
  MemoryPeak peak() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peak_;
  }

 private:
  friend class Measurement;
  std::atomic<bool> claimed_ = false;
  mutable std::mutex mutex_;
  MemoryPeak peak_;
};

// The measurement of a run that has claimed it; one that does not come to its end leaves it to the next run.
class Measurement {
 public:
  // `given`: by slot, whether it was given by the caller (MemoryMeter).
  Measurement(std::shared_ptr<FirstRun> first, const Frame& frame, const std::vector<char>& given)
      : meter(frame, given), first_(std::move(first)) {}
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;
  ~Measurement() {
    if (first_) first_->claimed_ = false;
  }

  // At the end of the run; `saved`: the slots that stay.
  void finish(const std::vector<int>& saved) {
    MemoryPeak peak{meter.peak(), meter.held_by(saved), meter.held_at_peak()};
    const std::shared_ptr<FirstRun> first = std::move(first_);
    const std::lock_guard<std::mutex> lock(first->mutex_);
    first->peak_ = std::move(peak);
  }

  MemoryMeter meter;

 private:
  std::shared_ptr<FirstRun> first_;  // null: finished
};

}  // namespace ortmodule
