// Bounds on what a model may cost: what it may hold, and what compiling and running it may take.
//
// A model is a program, and whoever wrote it may want a machine's memory or time. Counts that are known from the file
// (bytes of tensors, nodes, nesting) are checked while it is read, before memory is taken. What its runs take is known
// only then: an Allowance is what the run of this thread may still take, asked by the allocator (csrc/device) and
// between nodes. Not bounded: the time of a single kernel, and the memory of a GPU, which torch's allocator refuses.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

namespace ortmodule {

struct Limits {
  static constexpr uint64_t kUnlimited = UINT64_MAX, kAvailable = 0;

  uint64_t tensor_bytes = uint64_t{64} << 30;  // of the model's tensors together
  size_t nodes = 500'000;                      // of the model, with those of bodies and functions, as often as called
  size_t nesting = 32;                         // of bodies in bodies, and of functions that call functions
  uint64_t run_bytes = kUnlimited;             // a run's values, at one time; kAvailable: a block must be free memory
  double seconds = 0;                          // of a compilation, and of each run; 0: any
};

// No format bounds names; none that a person or an exporter gives is longer.
constexpr size_t kLongestName = 65'535;

// A model costs more than a limit allows.
class LimitError : public Error {
 public:
  explicit LimitError(const std::string& message) : Error(ErrorCode::kInvalidGraph, message) {}
};

template <typename... Args>
[[noreturn]] void exceed(const Args&... args) {
  throw LimitError(::ortmodule::str(args...));
}

// Bytes that this process could still take: what the system has free, or its group's limit leaves; kUnlimited where
// neither is known.
uint64_t available_memory();

// What one run, or one compilation, may still take. Blocks that outlive it hold it.
class Allowance {
 public:
  // Blocks below are not looked at where free memory is the limit: asking the system costs tens of microseconds.
  static constexpr uint64_t kLargeBlock = uint64_t{32} << 20;

  explicit Allowance(const Limits& limits);

  // Of a new block; throws LimitError. `counted`: give() will tell when it is gone.
  void take(uint64_t bytes);
  void give(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Whether take() and give() must be told of all blocks.
  bool counts() const { return bytes_ != Limits::kAvailable && bytes_ != Limits::kUnlimited; }
  // Throws LimitError when the time is over.
  void check_time() const {
    if (timed_ && Clock::now() > end_) out_of_time();
  }

  // That of this thread's run, or null.
  static const std::shared_ptr<Allowance>& current() noexcept { return current_; }

  class Scope {
   public:
    explicit Scope(std::shared_ptr<Allowance> allowance);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<Allowance> before_;
  };

  // Counts what a kernel collects in small pieces, which no allocator counts.
  class Collected {
   public:
    Collected() : allowance_(current_.get()) {}
    ~Collected() {
      if (allowance_) allowance_->give(bytes_);
    }
    Collected(const Collected&) = delete;
    Collected& operator=(const Collected&) = delete;
    void add(uint64_t bytes) {
      if (!allowance_) return;
      if (allowance_->counts()) {
        allowance_->take(bytes);
        bytes_ += bytes;
      } else if ((pending_ += bytes) >= kLargeBlock) {  // small pieces are looked at together
        allowance_->take(std::exchange(pending_, 0));
      }
    }

   private:
    Allowance* const allowance_;
    uint64_t bytes_ = 0, pending_ = 0;
  };

 private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void out_of_time() const;

  static thread_local std::shared_ptr<Allowance> current_;
  const uint64_t bytes_;
  const double seconds_;
  const bool timed_;
  const Clock::time_point end_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace ortmodule
