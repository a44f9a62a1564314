// Seconds spent inside kernels, and in the engine's part of a backward, for measuring everything around them
// (benchmarks/overhead.py). Off unless started; one clock per process, for steps that run one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "ortmodule/export.h"

namespace ortmodule {

class ORTMODULE_API KernelClock {
 public:
  // The clock that runs now, or null.
  static KernelClock* running() { return running_.load(std::memory_order_relaxed); }
  void start() { running_.store(this, std::memory_order_relaxed); }
  void stop() { running_.store(nullptr, std::memory_order_relaxed); }

  template <typename Call>
  void time(Call&& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++calls;
  }

  // Adds to `node_seconds` of the clock that runs, if one does, what passes while it lives.
  class NodeScope {
   public:
    NodeScope() : clock_(running()) {
      if (clock_) begin_ = std::chrono::steady_clock::now();
    }
    ~NodeScope() {
      if (clock_)
        clock_->node_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }
    NodeScope(const NodeScope&) = delete;
    NodeScope& operator=(const NodeScope&) = delete;

   private:
    KernelClock* const clock_;
    std::chrono::steady_clock::time_point begin_{};
  };

  double seconds = 0;
  int64_t calls = 0;
  double node_seconds = 0;  // inside autograd nodes of the engine

 private:
  inline static std::atomic<KernelClock*> running_{nullptr};
};

}  // namespace ortmodule
