#include "runtime/thread_limit.h"

#include <ATen/Parallel.h>
#include <omp.h>

// Of the MKL in torch, where it has one: the number before, 0 for the process's.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace ortmodule {
namespace {

int set_mkl(int threads) { return MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(threads) : 0; }

}  // namespace

ThreadLimit::ThreadLimit(int threads) : threads_(threads) {
  if (threads <= 0) return;
  // At its first parallel loop a thread takes the process's number. Torch's libraries know of it by one flag per thread
  // and this one, whose symbols are hidden, by another; what is set here comes after both.
  at::internal::lazy_init_num_threads();
  const int now = at::get_num_threads();
  if (now == threads) return;
  before_ = now;
  omp_set_num_threads(threads);
  mkl_before_ = set_mkl(threads);
}

void ThreadLimit::hold() {
  if (threads_ <= 0 || omp_get_max_threads() == threads_) return;
  omp_set_num_threads(threads_);
  set_mkl(threads_);
}

ThreadLimit::~ThreadLimit() {
  if (before_ == 0) return;
  omp_set_num_threads(before_);
  set_mkl(mkl_before_);
}

}  // namespace ortmodule
