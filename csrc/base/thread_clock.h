// Time that the calling thread ran: what else runs on the machine does not count. For choices between two ways to the
// same result, in which the thread has its share of the work. Not here: the time of a step (runtime/kernel_clock.h).
#pragma once

#include <ctime>

namespace ortmodule {

inline double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class F>
double thread_seconds_of(F&& run) {
  const double start = thread_seconds();
  run();
  return thread_seconds() - start;
}

}  // namespace ortmodule
