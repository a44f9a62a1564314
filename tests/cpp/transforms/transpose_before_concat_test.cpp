// A Transpose between Concat and Reshape moves in front of the Concat.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kHead =
    "graph g(a: float[1, 2, n, 4], b: float[1, 2, n, 4]) -> (y)\n const %flat: int64[1] = [-1]\n"
    " %c = Concat(%a, %b) {axis=-4}\n";

TEST(TransposeBeforeConcat, MovesInFrontOfItsParts) {
  auto g = resolved(kHead + " %t = Transpose(%c) {perm=[1, 2, 0, 3]}\n %r = Reshape(%t, %flat)\n %y = Relu(%r)");
  EXPECT_EQ(run_pass(make_pass("transpose_before_concat"), *g), 1u);
  EXPECT_EQ(count(*g, "Transpose"), 2u);
  const Node* concat = g->find("r")->producer()->input(0)->producer();
  EXPECT_EQ(concat->op(), "Concat");
  EXPECT_EQ(concat->get_int("axis", -1), 2);
  EXPECT_EQ(shape_text(*concat->output(0)->type().shape), "[2, n, 2, 4]");
}

TEST(TransposeBeforeConcat, ReversesTheAxesWithoutAPermutation) {
  auto g = resolved(kHead + " %t = Transpose(%c)\n %r = Reshape(%t, %flat)\n %y = Relu(%r)");
  EXPECT_EQ(run_pass(make_pass("transpose_before_concat"), *g), 1u);
  EXPECT_EQ(g->find("r")->producer()->input(0)->producer()->get_int("axis", -1), 3);
}

TEST(TransposeBeforeConcat, LeavesOtherReadersAndGraphOutputs) {
  for (const char* rest : {" %t = Transpose(%c)\n %y = Relu(%t)", " %y = Transpose(%c)",
                           " %t = Transpose(%c)\n %r = Reshape(%t, %flat)\n %s = Reshape(%c, %flat)\n %y = Add(%r, %s)",
                           " %t = Transpose(%c)\n %r = Reshape(%t, %flat)\n %s = Relu(%t)\n %z = Reshape(%s, %flat)\n"
                           " %y = Add(%r, %z)"}) {
    auto g = resolved(kHead + rest);
    EXPECT_EQ(run_pass(make_pass("transpose_before_concat"), *g), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
