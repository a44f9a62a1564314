// Memory of runs whose steps run side by side: pages stay, no two values share memory while both live, and results
// outlive their run.
#include "runtime/parallel/parallel_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "runtime/arena_pool.h"

namespace ortmodule {
namespace {

constexpr int64_t kLarge = 64 << 10;

at::Tensor made(const std::shared_ptr<ParallelMemory::Worker>& worker, size_t step, int64_t bytes = kLarge) {
  worker->set_step(step);
  const CpuAllocationScope scope(worker.get());
  return at::empty({bytes}, at::kByte);
}

std::shared_ptr<ParallelMemory::Worker> worker_of(const std::shared_ptr<ParallelMemory::Run>& run) {
  return std::make_shared<ParallelMemory::Worker>(run);
}

TEST(ParallelMemory, PagesStayFromRunToRun) {
  const auto memory = std::make_shared<ParallelMemory>(2);
  std::set<const void*> places;
  for (int i = 0; i < 6; ++i) {
    const auto run = memory->begin();
    ASSERT_TRUE(run);
    {
      const at::Tensor a = made(worker_of(run), 0), b = made(worker_of(run), 1);
      EXPECT_NE(a.data_ptr(), b.data_ptr());
      if (i > 0) places.insert({a.data_ptr(), b.data_ptr()});
    }
    run->end(true);
  }
  EXPECT_EQ(places.size(), 2u);
}

TEST(ParallelMemory, OneRunAtATimeIsServed) {
  const auto memory = std::make_shared<ParallelMemory>(1);
  const auto run = memory->begin();
  EXPECT_FALSE(memory->begin());
  run->end(true);
  EXPECT_TRUE(memory->begin());
}

TEST(ParallelMemory, ResultsOutliveTheirRunAndKeepNoArena) {
  auto memory = std::make_shared<ParallelMemory>(2);
  std::vector<at::Tensor> results;
  for (int i = 0; i < 5; ++i) {
    const auto run = memory->begin();
    const at::Tensor passing = made(worker_of(run), 0);
    results.push_back(made(worker_of(run), 1));
    std::fill_n(results.back().data_ptr<uint8_t>(), kLarge, static_cast<uint8_t>(i));
    run->end(true);
  }
  const size_t kept = ArenaPool::instance().idle_bytes();
  EXPECT_LE(kept, static_cast<size_t>(4 * kLarge));
  memory.reset();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(results[static_cast<size_t>(i)].data_ptr<uint8_t>()[kLarge - 1], i);
}

TEST(ParallelMemory, ARunThatFailedTeachesNothing) {
  const auto memory = std::make_shared<ParallelMemory>(1);
  at::Tensor left;
  {
    const auto run = memory->begin();
    left = made(worker_of(run), 0);
    run->end(false);
  }
  EXPECT_EQ(ArenaPool::instance().idle_bytes(), 0u);
  EXPECT_TRUE(memory->begin());
}

TEST(ParallelMemory, NoTwoLiveValuesShareMemory) {
  const auto memory = std::make_shared<ParallelMemory>(4);
  std::atomic<int> wrong{0};
  for (int i = 0; i < 20; ++i) {
    const auto run = memory->begin();
    std::vector<std::thread> threads;
    for (uint8_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const auto worker = worker_of(run);
        std::mt19937 random(t + 4u * static_cast<unsigned>(i));
        std::vector<at::Tensor> mine;
        for (int k = 0; k < 50; ++k) {
          const int64_t bytes = kLarge + static_cast<int64_t>(random() % 5) * 8192;
          mine.push_back(made(worker, t, bytes));
          std::fill_n(mine.back().data_ptr<uint8_t>(), bytes, t);
          if (mine.size() < 4) continue;
          const at::Tensor& oldest = mine.front();
          const uint8_t* const data = oldest.data_ptr<uint8_t>();
          wrong += static_cast<int>(std::count_if(data, data + oldest.numel(), [t](uint8_t at) { return at != t; }));
          mine.erase(mine.begin());
        }
      });
    for (std::thread& thread : threads) thread.join();
    run->end(true);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ortmodule
