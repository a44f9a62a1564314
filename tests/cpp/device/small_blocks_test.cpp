// Blocks of a run: sizes, alignment, reuse, other threads, and what is not served.
#include "device/small_block_scope.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace ortmodule {
namespace {

TEST(SmallBlocks, ServesOnlyInsideAScopeAndOnlySmallSizes) {
  EXPECT_EQ(SmallBlocks::take(64), nullptr);
  {
    const SmallBlockScope scope(true);
    EXPECT_EQ(SmallBlocks::take(0), nullptr);
    EXPECT_EQ(SmallBlocks::take(SmallBlocks::kLargest + 1), nullptr);
    {
      const SmallBlockScope inner(false);
      void* block = SmallBlocks::take(64);
      ASSERT_NE(block, nullptr);
      SmallBlocks::give(block);
    }
    void* block = SmallBlocks::take(SmallBlocks::kLargest);
    ASSERT_NE(block, nullptr);
    SmallBlocks::give(block);
  }
  EXPECT_EQ(SmallBlocks::take(64), nullptr);
}

TEST(SmallBlocks, BlocksOfEverySizeAreAlignedAndApart) {
  const SmallBlockScope scope(true);
  std::vector<std::pair<char*, size_t>> blocks;
  for (int round = 0; round < 2; ++round)
    for (size_t bytes = 1; bytes <= SmallBlocks::kLargest; bytes += 61) {
      auto* const data = static_cast<char*>(SmallBlocks::take(bytes));
      ASSERT_NE(data, nullptr);
      EXPECT_TRUE(SmallBlocks::owns(data));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % SmallBlocks::kAlignment, 0u);
      std::memset(data, static_cast<int>(blocks.size() % 251), bytes);
      blocks.emplace_back(data, bytes);
    }
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t k = 0; k < blocks[i].second; ++k)
      ASSERT_EQ(static_cast<unsigned char>(blocks[i].first[k]), i % 251) << "block " << i;
  for (const auto& [data, bytes] : blocks) SmallBlocks::give(data);
}

TEST(SmallBlocks, ReusesTheBlockThatCameBackLast) {
  const SmallBlockScope scope(true);
  void* first = SmallBlocks::take(200);
  SmallBlocks::give(first);
  void* second = SmallBlocks::take(240);
  EXPECT_EQ(second, first);
  SmallBlocks::give(second);
}

TEST(SmallBlocks, ComesBackThroughAnotherThreadAndUsedUpIsNoError) {
  std::set<void*> seen;
  bool used_up = false;
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> blocks;
    {
      const SmallBlockScope scope(true);
      for (int i = 0; i < 2000; ++i)
        if (void* block = SmallBlocks::take(4096)) blocks.push_back(block);
    }
    used_up = used_up || blocks.size() < 2000;
    seen.insert(blocks.begin(), blocks.end());
    std::thread([&] {
      for (void* block : blocks) SmallBlocks::give(block);
    }).join();
  }
  EXPECT_FALSE(used_up);  // what another thread frees is not lost when it ends
  EXPECT_LE(seen.size(), 4100u);
  std::vector<void*> all;
  const SmallBlockScope scope(true);
  while (void* block = SmallBlocks::take(SmallBlocks::kLargest)) all.push_back(block);
  EXPECT_LT(all.size(), size_t{1} << 20);
  for (void* block : all) SmallBlocks::give(block);
}

TEST(SmallBlocks, TellsItsBlocksFromOthers) {
  const std::vector<char> other(100);
  EXPECT_FALSE(SmallBlocks::owns(other.data()));
  EXPECT_FALSE(SmallBlocks::owns(nullptr));
}

}  // namespace
}  // namespace ortmodule
