// Equal computations become one; random ones, results and the two halves of a step stay apart.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

size_t merged(const std::string& body, const TransformContext& context = {}) {
  auto g = resolved("graph g(x: float[4, 4], w: float[4, 4]) -> (y)\n" + body);
  return run_pass(make_pass("common_subexpression_elimination"), *g, context);
}

TEST(CommonSubexpressionElimination, MergesWholeChainsInOneWalk) {
  EXPECT_EQ(merged("%a = Relu(%x)\n %b = Neg(%a)\n %c = Relu(%x)\n %d = Neg(%c)\n %y = Add(%b, %d)"), 2u);
}

TEST(CommonSubexpressionElimination, ComparesAttributesAndInputOrder) {
  EXPECT_EQ(merged("%a = Softmax(%x) {axis=0}\n %b = Softmax(%x) {axis=1}\n %y = Add(%a, %b)"), 0u);
  EXPECT_EQ(merged("%a = Sub(%x, %w)\n %b = Sub(%w, %x)\n %y = Add(%a, %b)"), 0u);
  EXPECT_EQ(merged("%a = Softmax(%x) {axis=0}\n %b = Softmax(%x) {axis=0}\n %y = Add(%a, %b)"), 1u);
}

TEST(CommonSubexpressionElimination, NeverMergesRandomNodes) {
  EXPECT_EQ(merged("const %r: double[] = [0.5]\n const %t: bool[] = [1]\n %a = Dropout(%x, %r, %t)\n"
                   "%b = Dropout(%x, %r, %t)\n %y = Add(%a, %b)"),
            0u);
}

TEST(CommonSubexpressionElimination, KeepsTwoResultsTwoTensors) {
  auto g = resolved("graph g(x: float[2]) -> (y, z)\n %y = Relu(%x)\n %z = Relu(%x)");
  EXPECT_EQ(run_pass(make_pass("common_subexpression_elimination"), *g), 0u);
}

TEST(CommonSubexpressionElimination, GivesTheFirstTheOutputsOfTheSecond) {
  auto g = resolved(R"(graph g(x: float[4, 4]) -> (y)
    const %k: int64[1] = [2]
    %v, _ = TopK(%x, %k)
    %u, %i = TopK(%x, %k)
    %f = Cast(%i) {to=1}
    %s = Add(%v, %u)
    %y = Add(%s, %f))");
  EXPECT_EQ(run_pass(make_pass("common_subexpression_elimination"), *g), 1u);
  EXPECT_EQ(count(*g, "TopK"), 1u);
  EXPECT_EQ(g->find("v")->producer()->outputs().size(), 2u);
}

TEST(CommonSubexpressionElimination, KeepsForwardAndBackwardApart) {
  EXPECT_EQ(merged("%a = Exp(%x)\n %b = Exp(%x) @{phase=\"backward\"}\n %y = Add(%a, %b) @{phase=\"backward\"}"), 0u);
  EXPECT_EQ(merged("%a = Exp(%x)\n %b = Exp(%x) @{\"recompute\"=\"1\"}\n %y = Add(%a, %b)"), 0u);
  EXPECT_EQ(merged("%a = Exp(%x)\n %b = Exp(%x) @{\"source\"=\"model.py:9\"}\n %y = Add(%a, %b)"), 1u);
}

TEST(CommonSubexpressionElimination, MergesEqualConstantsButNotWeights) {
  EXPECT_EQ(merged("const %a: int64[2] = [4, 4]\n const %b: int64[2] = [4, 4]\n %p = Reshape(%x, %a)\n"
                   "%q = Reshape(%x, %b)\n %y = Add(%p, %q)"),
            2u);
  EXPECT_EQ(merged("const %a: float[4] = [0, 0, 0, 0]\n const %b: float[4] = [0, 0, 0, 0]\n %p = Add(%x, %a)\n"
                   "%q = Add(%x, %b)\n %y = Add(%p, %q)"),
            0u);
}

}  // namespace
}  // namespace ortmodule
