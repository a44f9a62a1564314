#include "base/inter_op_pool.h"

#define EIGEN_MPL2_ONLY
#if __has_include(<Eigen/ThreadPool>)
#include <Eigen/ThreadPool>
#else
#include <unsupported/Eigen/CXX11/ThreadPool>
#endif
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/status.h"

namespace ortmodule {
namespace {

thread_local bool is_worker = false;

// How often this process and its parents were forked.
std::atomic<int> forks{0};

int generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

struct Global {
  std::mutex mutex;
  std::shared_ptr<InterOpPool> pool;
};

Global& process_pool() {
  static Global* const lives_on = new Global;  // sessions may run while the process exits
  return *lives_on;
}

}  // namespace

struct InterOpPool::Threads final : Eigen::ThreadPool {
  using Eigen::ThreadPool::ThreadPool;
  // Without a look at the table of virtual functions, which a destructor writes while the last jobs schedule others.
  void add(std::function<void()> job) { Eigen::ThreadPool::ScheduleWithHint(std::move(job), 0, NumThreads()); }
};

InterOpPool::InterOpPool(size_t threads, bool spin) : threads_(threads), process_(generation()) {
  ORTMODULE_CHECK_ARG(threads > 0 && threads < (1 << 15), "a pool should have 1 to 32767 threads, got ", threads);
  try {
    pool_ = new Threads(static_cast<int>(threads), spin);
  } catch (const std::system_error& error) {
    fail(ErrorCode::kRuntime, "a pool of ", threads, " threads could not be made: ", error.what());
  }
}

InterOpPool::~InterOpPool() {
  if (alive()) delete pool_;  // else nobody is there who could be waited for
}

bool InterOpPool::alive() const { return process_ == generation(); }

bool InterOpPool::on_worker() { return is_worker; }

void InterOpPool::schedule(std::function<void()> job) {
  pool_->add([job = std::move(job)] {
    const bool before = std::exchange(is_worker, true);
    job();
    is_worker = before;
  });
}

std::shared_ptr<InterOpPool> InterOpPool::global(size_t threads) {
  Global& all = process_pool();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.pool || !all.pool->alive()) all.pool = std::make_shared<InterOpPool>(threads, true);
  return all.pool;
}

void InterOpPool::set_global(size_t threads, bool spin) {
  Global& all = process_pool();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.pool = std::make_shared<InterOpPool>(threads, spin);
}

}  // namespace ortmodule
