// How many threads one operator uses, for what this thread runs.
#pragma once

namespace ortmodule {

// OpenMP and MKL count for the thread that asks. at::set_num_threads does so as well, but is also what threads that
// begin later start with, and so not for a while.
class ThreadLimit {
 public:
  // 0: as it is.
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  // Again, where a library has set it back meanwhile: one of operators, at its own first parallel loop.
  void hold();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  const int threads_;
  int before_ = 0, mkl_before_ = 0;  // 0: nothing was changed
};

}  // namespace ortmodule
