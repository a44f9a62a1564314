// The measurement of a session's first run: one of the threads that run it takes it, whoever that is.
#include "runtime/first_run.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ortmodule {
namespace {

// What a half of a run does with it: a storage of 64 floats in slot 0.
bool run_half(const std::shared_ptr<FirstRun>& first, bool fails = false) {
  if (!first->claim()) return false;
  Frame frame;
  frame.slots.resize(1);
  Measurement measurement(first, frame, {true});
  frame.slots[0] = at::empty({64});
  Step step;
  step.outputs = {0};
  measurement.meter.after_step(step, frame);
  if (fails) return true;
  measurement.finish({0});
  return true;
}

TEST(FirstRun, IsMeasuredByOneThreadAndReadByAll) {
  for (int round = 0; round < 200; ++round) {
    const auto first = std::make_shared<FirstRun>();
    std::atomic<int> measured = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        measured += run_half(first);
        const MemoryPeak peak = first->peak();
        EXPECT_TRUE(peak.bytes == 0 || (peak.bytes == 256 && peak.saved == 256 && peak.held.size() == 1));
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(measured, 1);
    EXPECT_EQ(first->peak().bytes, 256);
  }
}

TEST(FirstRun, ARunThatFailsLeavesItToTheNext) {
  const auto first = std::make_shared<FirstRun>();
  EXPECT_TRUE(run_half(first, true));
  EXPECT_EQ(first->peak().bytes, 0);
  EXPECT_TRUE(run_half(first));
  EXPECT_FALSE(run_half(first));
  EXPECT_EQ(first->peak().bytes, 256);
}

}  // namespace
}  // namespace ortmodule
