#include "runtime/run_trace.h"

#include <atomic>
#include <utility>

#include "graph/graph.h"

namespace ortmodule {
namespace {

uint64_t this_thread() {
  static std::atomic<uint64_t> threads{0};
  static thread_local const uint64_t own = ++threads;
  return own;
}

}  // namespace

void RunTrace::add(Event event, Clock::time_point begin, Clock::time_point end) {
  event.thread = this_thread();
  event.begin = std::chrono::duration<double>(begin - start_).count();
  event.seconds = std::chrono::duration<double>(end - begin).count();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() < kMostEvents) events_.push_back(std::move(event));
}

void RunTrace::add(const Step& step, Clock::time_point begin, Clock::time_point end) {
  add({step.node->name(), step.node->qualified_op(), step.node->provider(), 0, 0, 0}, begin, end);
}

void RunTrace::add_run(Clock::time_point begin, Clock::time_point end) { add({"run", "", "", 0, 0, 0}, begin, end); }

std::vector<RunTrace::Event> RunTrace::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace ortmodule
