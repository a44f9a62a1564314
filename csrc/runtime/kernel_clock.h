// Seconds spent inside kernels, for measuring everything around them (benchmarks/overhead.py). Off unless started;
// one clock per process, for steps that run one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ortmodule {

class KernelClock {
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

  double seconds = 0;
  int64_t calls = 0;

 private:
  inline static std::atomic<KernelClock*> running_{nullptr};
};

}  // namespace ortmodule
