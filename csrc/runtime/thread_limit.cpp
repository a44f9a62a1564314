#include "runtime/thread_limit.h"

#include <ATen/Parallel.h>
#include <omp.h>

// Of the MKL in torch, where it has one: the number before, 0 for the process's.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace ortmodule {
namespace {

int set_mkl(int threads) { return MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(threads) : 0; }

}  // namespace

ThreadLimit::ThreadLimit(int threads) {
  if (threads <= 0) return;
  const int now = at::get_num_threads();  // makes this thread torch's, which would set it later otherwise
  if (now == threads) return;
  before_ = now;
  omp_set_num_threads(threads);
  mkl_before_ = set_mkl(threads);
}

ThreadLimit::~ThreadLimit() {
  if (before_ == 0) return;
  omp_set_num_threads(before_);
  set_mkl(mkl_before_);
}

}  // namespace ortmodule
