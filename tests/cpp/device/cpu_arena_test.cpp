// The arena's free ranges: what is taken is not given twice, and what is freed joins its neighbours.
#include "device/cpu_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ortmodule {
namespace {

TEST(CpuArena, GivesAPlaceOnlyWhileItIsFree) {
  CpuArena arena(4096);
  void* a = arena.allocate_at(1024, 1024);
  ASSERT_NE(a, nullptr);
  std::memset(a, 1, 1024);
  EXPECT_EQ(arena.allocate_at(1024, 64), nullptr);
  EXPECT_EQ(arena.allocate_at(960, 128), nullptr);
  EXPECT_EQ(arena.allocate_at(1984, 128), nullptr);
  EXPECT_NE(arena.allocate_at(960, 64), nullptr);
  EXPECT_NE(arena.allocate_at(2048, 64), nullptr);
  arena.free(a, 1024);
  EXPECT_EQ(arena.allocate_at(1024, 1024), a);
}

TEST(CpuArena, RefusesWhatIsOutside) {
  CpuArena arena(4096);
  EXPECT_EQ(arena.allocate_at(4032, 128), nullptr);
  EXPECT_EQ(arena.allocate_at(8192, 64), nullptr);
  EXPECT_EQ(arena.allocate(4097), nullptr);
}

TEST(CpuArena, TakesTheSmallestFreeRangeThatFits) {
  CpuArena arena(4096);
  void* blocks[] = {arena.allocate(1024), arena.allocate(512), arena.allocate(256), arena.allocate(64)};
  arena.free(blocks[0], 1024);
  arena.free(blocks[2], 256);
  EXPECT_EQ(arena.allocate(200), blocks[2]);
  EXPECT_EQ(arena.allocate(1000), blocks[0]);
}

TEST(CpuArena, FreedNeighboursJoin) {
  CpuArena arena(3072);
  void* blocks[] = {arena.allocate(1024), arena.allocate(1024), arena.allocate(1024)};
  EXPECT_EQ(arena.allocate(64), nullptr);
  for (int i : {0, 2, 1}) arena.free(blocks[i], 1024);
  EXPECT_EQ(arena.in_use(), 0u);
  EXPECT_NE(arena.allocate(3072), nullptr);
}

TEST(CpuArena, RandomUseNeverOverlaps) {
  constexpr size_t kBytes = 1 << 16;
  CpuArena arena(kBytes);
  struct Block {
    unsigned char* data;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> live;
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    if (live.size() > 40 || (!live.empty() && random() % 2)) {
      const size_t k = random() % live.size();
      for (size_t b = 0; b < live[k].bytes; ++b) ASSERT_EQ(live[k].data[b], live[k].mark);
      arena.free(live[k].data, live[k].bytes);
      live.erase(live.begin() + static_cast<long>(k));
      continue;
    }
    const size_t bytes = 1 + random() % 4000;
    void* data = random() % 2 ? arena.allocate(bytes) : arena.allocate_at(random() % kBytes / 64 * 64, bytes);
    if (!data) continue;
    live.push_back({static_cast<unsigned char*>(data), bytes, static_cast<unsigned char>(random())});
    std::memset(data, live.back().mark, bytes);
  }
  for (const Block& block : live) arena.free(block.data, block.bytes);
  EXPECT_EQ(arena.in_use(), 0u);
}

}  // namespace
}  // namespace ortmodule
