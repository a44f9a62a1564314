// Ends runs before their end, from another thread.
#pragma once

#include <atomic>

#include "base/status.h"

namespace ortmodule {

class RunStop {
 public:
  void ask() noexcept { asked_.store(true, std::memory_order_relaxed); }
  void take_back() noexcept { asked_.store(false, std::memory_order_relaxed); }
  bool asked() const noexcept { return asked_.load(std::memory_order_relaxed); }

  // Throws kTerminated once it is asked for.
  void check() const {
    ORTMODULE_CHECK(!asked(), kTerminated, "the run was ended early: its options' terminate was set");
  }

  // That of this thread's runs, or null; bodies of control flow ask it as well.
  static const RunStop* current() noexcept { return current_; }

  class Scope {
   public:
    explicit Scope(const RunStop* stop) : before_(current_) { current_ = stop; }
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const RunStop* const before_;
  };

 private:
  static inline thread_local const RunStop* current_ = nullptr;
  std::atomic<bool> asked_{false};
};

}  // namespace ortmodule
