// A Concat of Unsqueezes is a Stack.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kHead =
    "graph g(a: float[3, n], b: float[3, n]) -> (y)\n const %one: int64[1] = [1]\n const %two: int64[1] = [-2]\n";

TEST(FuseStack, TakesAConcatOfUnsqueezes) {
  auto g = resolved(kHead +
                    " %u = Unsqueeze(%a, %one)\n %v = Unsqueeze(%b, %two)\n %c = Concat(%u, %v) {axis=-2}\n"
                    " %y = Relu(%c)");
  EXPECT_EQ(run_pass(make_pass("fuse_stack"), *g), 1u);
  EXPECT_EQ(count(*g, "Concat") + count(*g, "Unsqueeze"), 0u);
  const Node* stack = g->find("y")->producer()->input(0)->producer();
  EXPECT_EQ(stack->op(), "Stack");
  EXPECT_EQ(stack->get_int("axis", -1), 1);
  EXPECT_EQ(shape_text(*stack->output(0)->type().shape), "[3, 2, n]");
}

TEST(FuseStack, LeavesOtherAxesOtherReadersAndGraphOutputs) {
  for (const char* rest : {" %c = Concat(%u, %v) {axis=2}\n %y = Relu(%c)",
                           " %c = Concat(%u, %v) {axis=1}\n %d = Relu(%u)\n %y = Concat(%c, %d) {axis=1}",
                           " %y = Concat(%u, %v) {axis=1}", " %c = Concat(%u, %u) {axis=1}\n %y = Relu(%c)"}) {
    auto g = resolved(kHead + " %u = Unsqueeze(%a, %one)\n %v = Unsqueeze(%b, %one)\n" + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_stack"), *g), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
