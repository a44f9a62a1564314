// Blocks that come from one piece of memory although the heap is full of holes of their size.
#include "base/side_by_side.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <vector>

#include "base/asan.h"

namespace ortmodule {
namespace {

constexpr size_t kBytes = 472, kHoles = 400, kCount = 100;

std::vector<void*> blocks(size_t count) {
  std::vector<void*> made(count);
  for (void*& block : made) block = std::malloc(kBytes);
  return made;
}

void free_all(const std::vector<void*>& list) {
  for (void* block : list) std::free(block);
}

// How many blocks do not lie behind the one before.
size_t gaps(const std::vector<void*>& list) {
  size_t count = 0;
  for (size_t i = 1; i < list.size(); ++i)
    count += static_cast<char*>(list[i - 1]) + malloc_usable_size(list[i - 1]) + sizeof(size_t) != list[i];
  return count;
}

// Every second of many blocks is free.
class SideBySideTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef ORTMODULE_HAS_ASAN
    GTEST_SKIP() << "AddressSanitizer has a malloc of its own";
#endif
    const std::vector<void*> all = blocks(2 * kHoles);
    std::vector<void*> holes;
    for (size_t i = 0; i < all.size(); ++i) (i % 2 ? holes : kept_).push_back(all[i]);
    free_all(holes);
  }
  void TearDown() override { free_all(kept_); }
  std::vector<void*> kept_;
};

TEST_F(SideBySideTest, BlocksLieSideBySideWhileItLives) {
  std::vector<void*> near;
  {
    const SideBySide scope(kBytes, kCount);
    near = blocks(kCount);
  }
  // malloc's list of the thread gives its few in the other order.
  EXPECT_LE(gaps(near), 16U);
  free_all(near);
}

TEST_F(SideBySideTest, HolesServeAgainBehindIt) {
  {
    const SideBySide scope(kBytes, kCount);
  }
  const std::vector<void*> after = blocks(kCount);
  EXPECT_GT(gaps(after), kCount / 2);
  free_all(after);
}

}  // namespace
}  // namespace ortmodule
