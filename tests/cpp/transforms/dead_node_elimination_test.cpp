// What nothing reads goes: nodes, optional outputs, initializers.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::resolved;
using testing::run_pass;

TEST(DeadNodeElimination, RemovesChainsNobodyReads) {
  auto g = resolved(R"(graph g(x: float[2]) -> (y)
    const %w: float[2] = [1, 2]
    %y = Relu(%x)
    %a = Add(%x, %w)
    %b = Neg(%a)
    %c = Exp(%b))");
  EXPECT_EQ(run_pass(make_pass("dead_node_elimination"), *g), 4u);  // three nodes and the initializer
  EXPECT_EQ(g->node_count(), 1u);
  EXPECT_TRUE(g->initializers().empty());
  EXPECT_EQ(run_pass(make_pass("dead_node_elimination"), *g), 0u);
}

TEST(DeadNodeElimination, DropsOptionalOutputsNobodyReads) {
  auto g = resolved(R"(graph g(x: float[2]) -> (y)
    const %r: double[] = [0.5]
    const %t: bool[] = [1]
    %y, %mask = Dropout(%x, %r, %t))");
  EXPECT_EQ(run_pass(make_pass("dead_node_elimination"), *g), 1u);
  EXPECT_EQ(g->find("y")->producer()->outputs().size(), 1u);
}

TEST(DeadNodeElimination, KeepsInputs) {
  auto g = resolved("graph g(x: float[2], unused: float[2]) -> (y)\n %y = Relu(%x)");
  EXPECT_EQ(run_pass(make_pass("dead_node_elimination"), *g), 0u);
  EXPECT_EQ(g->inputs().size(), 2u);
}

}  // namespace
}  // namespace ortmodule
