// The threads that nodes run on: all that is scheduled runs, they sleep without work, and a forked process has none.
#include "base/inter_op_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "base/status.h"

namespace ortmodule {
namespace {

class PoolWith : public ::testing::TestWithParam<bool> {};

TEST_P(PoolWith, RunsAllThatIsScheduledFromAnyThread) {
  std::atomic<int> ran{0};
  {
    InterOpPool pool(3, GetParam());
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i)
      callers.emplace_back([&] {
        for (int k = 0; k < 500; ++k)
          pool.schedule([&] {
            if (++ran % 2) pool.schedule([&] { ++ran; });
          });
      });
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_GE(ran, 2000);  // the pool waits for its work when it goes
}

TEST_P(PoolWith, RunsMoreThanItsQueuesHold) {
  std::atomic<int> ran{0};
  {
    InterOpPool pool(1, GetParam());
    for (int i = 0; i < 5000; ++i) pool.schedule([&] { ++ran; });
  }
  EXPECT_EQ(ran, 5000);
}

INSTANTIATE_TEST_SUITE_P(Spinning, PoolWith, ::testing::Bool(),
                         [](const auto& spins) { return spins.param ? "Spins" : "Blocks"; });

TEST(InterOpPool, ItsThreadsKnowThatTheyAreOnes) {
  std::atomic<bool> inside{false};
  std::mutex mutex;
  std::set<std::thread::id> threads;
  {
    InterOpPool pool(2, true);
    for (int i = 0; i < 100; ++i)
      pool.schedule([&] {
        inside = InterOpPool::on_worker();
        const std::lock_guard<std::mutex> lock(mutex);
        threads.insert(std::this_thread::get_id());
      });
  }
  EXPECT_TRUE(inside);
  EXPECT_FALSE(InterOpPool::on_worker());
  EXPECT_LE(threads.size(), 2U);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(InterOpPool, ThreadsWithoutWorkSleep) {
  InterOpPool pool(4, true);
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) pool.schedule([&] { ++ran; });
  while (ran < 100) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.05);  // 0.8 if they looked for work all the time
}

TEST(InterOpPool, TheProcesssIsOneUntilAnotherIsAskedFor) {
  InterOpPool::set_global(2, false);
  const std::shared_ptr<InterOpPool> first = InterOpPool::global(7);
  EXPECT_EQ(first->size(), 2U);
  EXPECT_EQ(InterOpPool::global(3), first);
  InterOpPool::set_global(3, true);
  EXPECT_EQ(InterOpPool::global(1)->size(), 3U);
  EXPECT_EQ(first->size(), 2U);
}

TEST(InterOpPool, AForkedProcessHasNoThreadsOfItsParents) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a process with threads that forks";
#endif
  InterOpPool::set_global(2, true);
  auto pool = std::make_unique<InterOpPool>(2, true);
  EXPECT_TRUE(pool->alive());
  const pid_t child = fork();
  if (child == 0) {
    const bool known = !pool->alive();
    pool.reset();  // waits for nobody
    std::atomic<bool> ran{false};
    const std::shared_ptr<InterOpPool> own = InterOpPool::global(1);
    own->schedule([&] { ran = true; });
    for (int i = 0; i < 2000 && !ran; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    _exit(known && ran ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(pool->alive());
}

TEST(InterOpPool, NoThreadsAreNoPool) {
  EXPECT_THROW(InterOpPool(0, true), Error);
  EXPECT_THROW(InterOpPool(1 << 20, true), Error);
}

}  // namespace
}  // namespace ortmodule
