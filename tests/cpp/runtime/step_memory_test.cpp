// A run's large allocations get the places that the recorded run gave them, and only while those are free.
#include "runtime/step_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

namespace ortmodule {
namespace {

constexpr int64_t kLarge = 64 << 10;

// One step of a half: the tensor that its kernel makes.
at::Tensor step(const std::shared_ptr<StepMemory::Lease>& lease, int64_t bytes = kLarge) {
  const std::shared_ptr<StepMemory::Run> run = lease ? lease->run() : nullptr;
  if (run) run->step();
  const CpuAllocationScope scope(run.get());
  return at::empty({bytes}, at::kByte);
}

// Forward keeps one of its two tensors, backward makes one more: two are alive at once.
std::vector<void*> iteration(StepMemory& memory, int64_t bytes = kLarge, const std::vector<int64_t>& key = {1}) {
  std::vector<void*> places;
  auto lease = memory.begin(key);
  at::Tensor saved = step(lease, bytes);
  places.push_back(saved.data_ptr());
  places.push_back(step(lease, bytes).data_ptr());
  if (lease) lease->run()->begin_backward(&memory);
  places.push_back(step(lease, bytes).data_ptr());
  return places;
}

TEST(StepMemory, PlansTheSecondRunFromTheFirst) {
  const auto memory = std::make_shared<StepMemory>();
  iteration(*memory);
  EXPECT_EQ(memory->arena_bytes(), 0u);
  const std::vector<void*> first = iteration(*memory);
  EXPECT_EQ(memory->arena_bytes(), 2u * kLarge);
  EXPECT_EQ(first[1], first[2]);
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(iteration(*memory), first);
  EXPECT_EQ(memory->unplanned(), 0);
}

TEST(StepMemory, ABlockThatIsHeldLongerIsNeverOverwritten) {
  const auto memory = std::make_shared<StepMemory>();
  iteration(*memory);
  auto lease = memory->begin({1});
  at::Tensor held = step(lease).fill_(7);  // its place is free again after this run, as recorded
  lease.reset();
  for (int i = 0; i < 3; ++i) {
    auto other = memory->begin({1});
    std::vector<at::Tensor> outputs;
    for (int k = 0; k < 2; ++k) outputs.push_back(step(other).fill_(i));
    EXPECT_TRUE(held.eq(7).all().item<bool>());
  }
}

TEST(StepMemory, WhatOutlivesARunIsLeftToTorch) {
  const auto memory = std::make_shared<StepMemory>();
  std::vector<at::Tensor> outputs;
  const auto run = [&] {
    auto lease = memory->begin({0});
    at::Tensor fresh = step(lease);
    step(lease);
    outputs = {fresh};  // the output of the run before lives until here
  };
  for (int i = 0; i < 4; ++i) run();
  EXPECT_EQ(memory->arena_bytes(), static_cast<size_t>(kLarge));
  EXPECT_EQ(memory->unplanned(), 0);
}

TEST(StepMemory, ASecondOutstandingRunIsServedByTorch) {
  const auto memory = std::make_shared<StepMemory>();
  iteration(*memory);
  const auto lease = memory->begin({1});
  EXPECT_EQ(memory->begin({1}), nullptr);
}

TEST(StepMemory, OtherSizesHaveAPatternOfTheirOwn) {
  const auto memory = std::make_shared<StepMemory>();
  for (int i = 0; i < 2; ++i) iteration(*memory, 4 * kLarge, {1, 4});
  for (int i = 0; i < 2; ++i) iteration(*memory, kLarge, {1, 1});
  EXPECT_EQ(memory->arena_bytes(), 8u * kLarge);
  EXPECT_EQ(iteration(*memory, 4 * kLarge, {1, 4})[0], iteration(*memory, 4 * kLarge, {1, 4})[0]);
  EXPECT_EQ(memory->unplanned(), 0);
}

TEST(StepMemory, SizesThatDifferFromTheRecordedRunAreLearned) {
  const auto memory = std::make_shared<StepMemory>();
  iteration(*memory);
  iteration(*memory, 3 * kLarge);  // three requests that do not fit
  for (int i = 0; i < 3; ++i) iteration(*memory, 3 * kLarge);
  EXPECT_EQ(memory->unplanned(), 3);
  EXPECT_EQ(memory->arena_bytes(), 6u * kLarge);
}

TEST(StepMemory, BlocksMayOutliveTheirSessionAndBeFreedElsewhere) {
  at::Tensor survivor;
  {
    const auto memory = std::make_shared<StepMemory>();
    iteration(*memory);
    auto lease = memory->begin({1});
    survivor = step(lease).fill_(5);
  }
  release_step_memory();
  EXPECT_TRUE(survivor.eq(5).all().item<bool>());
  std::thread([moved = std::move(survivor)]() mutable { moved.reset(); }).join();
}

TEST(StepMemory, SmallAllocationsAndThoseOutsideARunAreTorchs) {
  const auto memory = std::make_shared<StepMemory>();
  for (int i = 0; i < 2; ++i) {
    auto lease = memory->begin({1});
    if (lease) step(lease, 64);
    const at::Tensor outside = at::empty({kLarge}, at::kByte);
  }
  EXPECT_EQ(memory->arena_bytes(), 0u);
  EXPECT_EQ(memory->begin({1}), nullptr) << "a run without large tensors needs no arena";
}

}  // namespace
}  // namespace ortmodule
