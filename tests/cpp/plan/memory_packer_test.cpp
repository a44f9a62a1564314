// Places in an arena: nothing that lives at the same time overlaps, and little is wasted.
#include "plan/memory_packer.h"

#include <gtest/gtest.h>

#include <random>

namespace ortmodule {
namespace {

void expect_valid(const std::vector<BlockLifetime>& blocks, const Packing& packing, size_t alignment) {
  ASSERT_EQ(packing.offsets.size(), blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(packing.offsets[i] % alignment, 0u);
    EXPECT_LE(packing.offsets[i] + blocks[i].bytes, packing.bytes);
    for (size_t k = 0; k < i; ++k) {
      const bool together = blocks[i].first < blocks[k].end && blocks[k].first < blocks[i].end;
      if (!together) continue;
      const bool apart = packing.offsets[i] + blocks[i].bytes <= packing.offsets[k] ||
                         packing.offsets[k] + blocks[k].bytes <= packing.offsets[i];
      EXPECT_TRUE(apart) << "blocks " << k << " and " << i;
    }
  }
}

TEST(MemoryPacker, NothingNeedsNothing) {
  EXPECT_EQ(pack_memory({}).bytes, 0u);
  EXPECT_EQ(live_peak({}), 0u);
}

TEST(MemoryPacker, ReusesABlockAfterLastUse) {
  const std::vector<BlockLifetime> blocks = {{640, 0, 2}, {64, 1, 4}, {640, 2, 4}};
  const Packing packing = pack_memory(blocks);
  expect_valid(blocks, packing, 64);
  EXPECT_EQ(packing.offsets[2], packing.offsets[0]);
  EXPECT_EQ(packing.bytes, 704u);
}

TEST(MemoryPacker, RoundsUpToTheAlignment) {
  const std::vector<BlockLifetime> blocks = {{1, 0, 2}, {65, 0, 2}};
  expect_valid(blocks, pack_memory(blocks), 64);
  EXPECT_EQ(pack_memory(blocks).bytes, 192u);
}

TEST(MemoryPacker, PutsASmallBlockIntoTheSmallestGapThatHoldsIt) {
  // Between the large ones, gaps of 256 and 128 bytes are free at the time of the last block.
  const std::vector<BlockLifetime> blocks = {{1024, 0, 9}, {256, 0, 3},  {1024, 0, 9},
                                             {128, 0, 3},  {1024, 0, 9}, {100, 4, 9}};
  expect_valid(blocks, pack_memory(blocks), 64);
  EXPECT_LE(pack_memory(blocks).bytes, 3 * 1024u + 256 + 128);
}

TEST(MemoryPacker, RandomLifetimesAreValidAndCloseToThePeak) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<BlockLifetime> blocks;
    for (uint32_t i = 0; i < 200; ++i)
      blocks.push_back({64 * (1 + random() % 500), i, i + 1 + static_cast<uint32_t>(random() % 60)});
    const Packing packing = pack_memory(blocks);
    expect_valid(blocks, packing, 64);
    EXPECT_GE(packing.bytes, live_peak(blocks));
    EXPECT_LE(packing.bytes, live_peak(blocks) * 115 / 100);
  }
}

TEST(MemoryPacker, StackOfSavedActivationsIsPackedWithoutWaste) {
  // Forward saves one block per layer and uses a temporary beside it; backward frees them in reverse order.
  constexpr uint32_t kLayers = 24;
  std::vector<BlockLifetime> blocks;
  for (uint32_t i = 0; i < kLayers; ++i) {
    blocks.push_back({4096, 2 * i, 4 * kLayers - 2 * i});
    blocks.push_back({8192, 2 * i + 1, 2 * i + 2});
    blocks.push_back({8192, 4 * kLayers - 2 * i - 1, 4 * kLayers - 2 * i});
  }
  EXPECT_EQ(pack_memory(blocks).bytes, live_peak(blocks));
}

TEST(MemoryPacker, BlocksSetApartHaveAnArenaThatOthersUseBeforeThem) {
  // A gradient is made while the activations before it go.
  const std::vector<BlockLifetime> blocks = {{256, 0, 2}, {128, 1, 3}, {256, 3, 4}};
  const PackingApart packing = pack_memory_apart(blocks, {0, 0, 1});
  EXPECT_EQ(packing.first_bytes, 256u);
  EXPECT_EQ(packing.second_bytes, 128u);
  EXPECT_EQ(packing.in_first, (std::vector<char>{1, 0, 1}));
  EXPECT_EQ(packing.offsets, (std::vector<size_t>{0, 0, 0}));
}

TEST(MemoryPacker, GradientsTakeTheRoomOfWhatWasSavedInReverse) {
  constexpr uint32_t kLayers = 4, kEnd = 4 * kLayers;
  std::vector<BlockLifetime> blocks;
  std::vector<char> gradient;
  for (uint32_t i = 0; i < kLayers; ++i) {
    blocks.push_back({192, 2 * i, kEnd - 2 * i});
    blocks.push_back({64, 2 * i + 1, 2 * i + 2});
  }
  gradient.assign(blocks.size(), 0);
  for (uint32_t i = kLayers; i-- > 0;) {
    blocks.push_back({128, kEnd - 2 * i - 1, kEnd});
    gradient.push_back(1);
  }
  const PackingApart packing = pack_memory_apart(blocks, gradient);
  EXPECT_EQ(packing.first_bytes + packing.second_bytes, live_peak(blocks));
}

TEST(MemoryPacker, NoBlockLiesAcrossTheTwoArenas) {
  const std::vector<BlockLifetime> blocks = {{384, 0, 1}, {256, 1, 2}};
  const PackingApart packing = pack_memory_apart(blocks, {0, 1});
  EXPECT_EQ(packing.first_bytes, 256u);
  EXPECT_EQ(packing.second_bytes, 384u);
  EXPECT_FALSE(packing.in_first[0]);
}

}  // namespace
}  // namespace ortmodule
