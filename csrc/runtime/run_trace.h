// When each step of the traced runs ran: what a timeline is drawn from.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "ortmodule/export.h"
#include "plan/execution_plan.h"

namespace ortmodule {

class RunTrace {
 public:
  using Clock = std::chrono::steady_clock;
  // Later ones are dropped.
  static constexpr size_t kMostEvents = 1'000'000;

  struct Event {
    std::string name, op, provider;
    uint64_t thread;        // a number of its own for each
    double begin, seconds;  // since the trace was made
  };

  void add(const Step& step, Clock::time_point begin, Clock::time_point end);
  // A whole run.
  void add_run(Clock::time_point begin, Clock::time_point end);
  // What was added since this was last asked.
  ORTMODULE_API std::vector<Event> take();

  // That of this thread's runs, or null; bodies of control flow ask it as well.
  static RunTrace* current() noexcept { return current_; }

  // What a Scope is of: a whole run, which is noted from its begin to its end, or another thread's part of one.
  enum class Part { kRun, kOfRun };

  // Null: nothing is noted.
  class Scope {
   public:
    explicit Scope(RunTrace* trace, Part part = Part::kRun)
        : before_(current_), noted_(part == Part::kRun ? trace : nullptr) {
      current_ = trace;
      if (noted_) begin_ = Clock::now();
    }
    ~Scope() {
      current_ = before_;
      if (noted_) noted_->add_run(begin_, Clock::now());
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RunTrace *const before_, *const noted_;
    Clock::time_point begin_{};
  };

 private:
  void add(Event event, Clock::time_point begin, Clock::time_point end);

  static inline thread_local RunTrace* current_ = nullptr;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace ortmodule
