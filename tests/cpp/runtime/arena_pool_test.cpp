// Sessions share the arenas between their runs: what is kept is what the largest step needs.
#include "runtime/arena_pool.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "runtime/step_memory.h"

namespace ortmodule {
namespace {

constexpr int64_t kLarge = 64 << 10;

at::Tensor step(const std::shared_ptr<StepMemory::Lease>& lease, int64_t bytes) {
  const std::shared_ptr<StepMemory::Run> run = lease ? lease->run() : nullptr;
  if (run) run->step();
  const CpuAllocationScope scope(run.get());
  return at::empty({bytes}, at::kByte);
}

// A step that makes a passing block and one that it gives its caller, of `bytes` each.
at::Tensor iteration(StepMemory& memory, int64_t bytes) {
  const auto lease = memory.begin({1});
  const at::Tensor passing = step(lease, bytes);
  return step(lease, bytes);
}

std::shared_ptr<StepMemory> learned(int64_t bytes) {
  auto memory = std::make_shared<StepMemory>();
  for (int i = 0; i < 3; ++i) iteration(*memory, bytes);
  return memory;
}

class SharedArenas : public testing::Test {
 protected:
  void SetUp() override { release_step_memory(); }
  size_t kept() const { return ArenaPool::instance().idle_bytes(); }
};

TEST_F(SharedArenas, SessionsInTurnsKeepWhatTheLargestNeeds) {
  const auto small = learned(kLarge), large = learned(4 * kLarge), middle = learned(2 * kLarge);
  for (int i = 0; i < 4; ++i) {
    iteration(*small, kLarge);
    iteration(*large, 4 * kLarge);
    iteration(*middle, 2 * kLarge);
  }
  EXPECT_EQ(kept(), large->arena_bytes());
  EXPECT_EQ(small->unplanned() + large->unplanned() + middle->unplanned(), 0);
}

TEST_F(SharedArenas, SessionsInTurnsGetTheSamePages) {
  const auto one = learned(kLarge), other = learned(kLarge);
  const void* place = iteration(*one, kLarge).data_ptr();
  EXPECT_EQ(iteration(*other, kLarge).data_ptr(), place);
  EXPECT_EQ(iteration(*one, kLarge).data_ptr(), place);
}

TEST_F(SharedArenas, WhatACallerHoldsLeavesThePassingArenaToOthers) {
  const auto one = learned(kLarge), other = learned(kLarge);
  const at::Tensor held = iteration(*one, kLarge).fill_(7);
  for (int i = 0; i < 3; ++i) iteration(*other, kLarge).fill_(1);
  EXPECT_TRUE(held.eq(7).all().item<bool>());
  EXPECT_EQ(other->unplanned(), 0);
  EXPECT_LE(kept(), 3u * kLarge);  // one passing arena, and the two that callers were given
}

TEST_F(SharedArenas, ASessionThatGoesLeavesTheOthersPages) {
  const auto stays = learned(kLarge);
  const void* place = iteration(*stays, kLarge).data_ptr();
  learned(kLarge).reset();
  EXPECT_EQ(kept(), stays->arena_bytes());
  EXPECT_EQ(iteration(*stays, kLarge).data_ptr(), place);
}

TEST_F(SharedArenas, TheLastSessionTakesThePagesWithIt) {
  auto memory = learned(kLarge);
  EXPECT_GT(kept(), 0u);
  memory.reset();
  EXPECT_EQ(kept(), 0u);
}

TEST_F(SharedArenas, RunsThatAreOutstandingTogetherHaveArenasOfTheirOwn) {
  const auto one = learned(kLarge), other = learned(kLarge);
  for (int i = 0; i < 3; ++i) {
    const auto first = one->begin({1}), second = other->begin({1});
    const at::Tensor a = step(first, kLarge).fill_(1), b = step(second, kLarge).fill_(2);
    EXPECT_TRUE(a.eq(1).all().item<bool>());
    EXPECT_NE(a.data_ptr(), b.data_ptr());
  }
  EXPECT_EQ(one->unplanned() + other->unplanned(), 0);
}

}  // namespace
}  // namespace ortmodule
