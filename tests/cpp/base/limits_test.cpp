// What one run may take: bytes that come and go, time, and free memory.
#include "base/limits.h"

#include <gtest/gtest.h>

#include <thread>

namespace ortmodule {
namespace {

TEST(Allowance, GivesUpToItsLimitAndAgainWhatCameBack) {
  Limits limits;
  limits.run_bytes = 100;
  Allowance allowance(limits);
  EXPECT_TRUE(allowance.counts());
  allowance.take(60);
  EXPECT_THROW(allowance.take(41), LimitError);
  EXPECT_THROW(allowance.take(UINT64_MAX), LimitError);
  allowance.take(40);
  allowance.give(60);
  allowance.take(60);
  EXPECT_THROW(allowance.take(1), LimitError);
}

TEST(Allowance, IsThatOfItsThreadWhileItsScopeLives) {
  Limits limits;
  limits.run_bytes = 10;
  EXPECT_EQ(Allowance::current(), nullptr);
  {
    const Allowance::Scope outer(std::make_shared<Allowance>(limits));
    const std::shared_ptr<Allowance> own = Allowance::current();
    {
      const Allowance::Scope inner(nullptr);
      EXPECT_EQ(Allowance::current(), nullptr);
    }
    EXPECT_EQ(Allowance::current(), own);
    std::thread([] { EXPECT_EQ(Allowance::current(), nullptr); }).join();
  }
  EXPECT_EQ(Allowance::current(), nullptr);
}

TEST(Allowance, GivesBackWhatWasCollected) {
  Limits limits;
  limits.run_bytes = 10;
  const Allowance::Scope scope(std::make_shared<Allowance>(limits));
  for (int i = 0; i < 5; ++i) {
    Allowance::Collected collected;
    collected.add(6);
    collected.add(4);
    EXPECT_THROW(collected.add(1), LimitError);
  }
}

TEST(Allowance, LooksAtTheClock) {
  Limits limits;
  Allowance(limits).check_time();
  limits.seconds = 0.005;
  const Allowance allowance(limits);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_THROW(allowance.check_time(), LimitError);
}

TEST(Allowance, ComparesLargeBlocksWithFreeMemory) {
  Limits limits;
  limits.run_bytes = Limits::kAvailable;
  Allowance allowance(limits);
  EXPECT_FALSE(allowance.counts());
  for (int i = 0; i < 1000; ++i) allowance.take(Allowance::kLargeBlock - 1);  // nobody looks
  allowance.take(Allowance::kLargeBlock);
  const uint64_t free = available_memory();
  EXPECT_GT(free, 0u);
  if (free != Limits::kUnlimited) EXPECT_THROW(allowance.take(uint64_t{1} << 60), LimitError);
}

}  // namespace
}  // namespace ortmodule
