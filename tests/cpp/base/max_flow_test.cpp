// Flows and cuts of small graphs with known answers, and of a chain too long for recursion.
#include "base/max_flow.h"

#include <gtest/gtest.h>

namespace ortmodule {
namespace {

TEST(MaxFlow, EqualsTheCapacityOfTheSmallestCut) {
  MaxFlow flow(6);  // the textbook network of Cormen et al., Introduction to Algorithms, figure 26.1
  flow.add_edge(0, 1, 16);
  flow.add_edge(0, 2, 13);
  flow.add_edge(1, 2, 10);
  flow.add_edge(2, 1, 4);
  flow.add_edge(1, 3, 12);
  flow.add_edge(3, 2, 9);
  flow.add_edge(2, 4, 14);
  flow.add_edge(4, 3, 7);
  flow.add_edge(3, 5, 20);
  flow.add_edge(4, 5, 4);
  EXPECT_DOUBLE_EQ(flow.solve(0, 5), 23);
  EXPECT_TRUE(flow.on_source_side(0) && flow.on_source_side(1) && flow.on_source_side(2) && flow.on_source_side(4));
  EXPECT_FALSE(flow.on_source_side(3) || flow.on_source_side(5));
}

TEST(MaxFlow, UnboundedEdgesAreNeverCut) {
  MaxFlow flow(3);
  flow.add_edge(0, 1, MaxFlow::kUnbounded);
  flow.add_edge(1, 2, 5);
  EXPECT_DOUBLE_EQ(flow.solve(0, 2), 5);
  EXPECT_TRUE(flow.on_source_side(1));
}

TEST(MaxFlow, IsZeroWithoutAPath) {
  MaxFlow flow(2);
  const size_t between = flow.add_vertex();
  flow.add_edge(0, between, 3);
  EXPECT_EQ(flow.solve(0, 1), 0);
  EXPECT_TRUE(flow.on_source_side(between));
}

TEST(MaxFlow, LongChainsNeedNoStack) {
  constexpr size_t kLength = 200000;
  MaxFlow flow(kLength);
  for (size_t i = 0; i + 1 < kLength; ++i) flow.add_edge(i, i + 1, i == kLength / 2 ? 1 : 2);
  EXPECT_DOUBLE_EQ(flow.solve(0, kLength - 1), 1);
  EXPECT_TRUE(flow.on_source_side(kLength / 2));
  EXPECT_FALSE(flow.on_source_side(kLength / 2 + 1));
}

}  // namespace
}  // namespace ortmodule
