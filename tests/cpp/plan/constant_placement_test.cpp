// Which side each constant is needed on, and the copy for one that is needed on both.
#include "plan/constant_placement.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

bool on_host(const Graph& graph, const char* name) { return ConstantPlacement(graph).on_host(*graph.find(name)); }

TEST(ConstantPlacement, SizesAndNumbersBesideTensorsStayOnTheHost) {
  auto g = resolved(
      "graph g(x: float[4]) -> (y)\n const %k: int64[2] = [2, 2]\n const %two: float[] = [2.0]\n"
      " %a = Mul(%x, %two)\n %y = Reshape(%a, %k)");
  EXPECT_TRUE(on_host(*g, "k"));
  EXPECT_TRUE(on_host(*g, "two"));
}

TEST(ConstantPlacement, WhatMeetsTensorsLiesBesideThem) {
  auto g = resolved(
      "graph g(x: float[2]) -> (y, z)\n const %k: float[2] = [1.0, 2.0]\n const %one: float[] = [1.0]\n"
      " const %sizes: int64[1] = [3]\n %y = Add(%x, %k)\n %z = Expand(%one, %sizes)");
  EXPECT_FALSE(on_host(*g, "k"));
  EXPECT_FALSE(on_host(*g, "one")) << "what is expanded is a tensor";
}

TEST(ConstantPlacement, WhatIsComputedOfSizesStaysOnTheHost) {
  auto g = resolved(
      "graph g(x: float[n, 2]) -> (y)\n const %k: int64[1] = [-1]\n const %zero: int64[1] = [0]\n"
      " const %one: int64[1] = [1]\n %s = Shape(%x)\n %n = Slice(%s, %zero, %one)\n %t = Concat(%n, %k) {axis=0}\n"
      " %y = Reshape(%x, %t)");
  EXPECT_TRUE(on_host(*g, "k"));
}

TEST(ConstantPlacement, OneForBothSidesIsCopied) {
  auto g = resolved(
      "graph g(x: int64[1], r: float[4]) -> (y, z)\n const %k: int64[1] = [4]\n %y = Add(%x, %k)\n"
      " %z = Reshape(%r, %k)");
  separate_constants(*g);
  verify_edges(*g);
  const NodeArg* k = g->find("k");
  EXPECT_FALSE(on_host(*g, "k"));
  ASSERT_EQ(k->uses().size(), 1u);
  EXPECT_EQ(k->uses()[0].node->op(), "Add");
  g->for_each([&](const Node& node) {
    const bool placed = node.op() != "Reshape" || ConstantPlacement(*g).on_host(*node.input(1));
    EXPECT_TRUE(placed) << node.describe();
  });
}

}  // namespace
}  // namespace ortmodule
