// A scattered gradient is added to the other gradient of a table in place.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kHead =
    "graph g(a: float[9, 4], dy: float[3, 4], dz: float[2, 4], i: int64[3], j: int64[2]) -> (y)\n"
    " const %s: int64[2] = [9, 4]\n";

TEST(AccumulateGradients, AddsRowsToTheOtherOperand) {
  for (const char* sum : {"Sum(%a, %g)", "Sum(%g, %a)"}) {
    auto g = resolved(kHead + " %g = ai.ortmodule::GatherGrad(%dy, %i, %s)\n %t = " + sum + "\n %y = Relu(%t)");
    EXPECT_EQ(run_pass(make_pass("accumulate_gradients"), *g), 1u);
    EXPECT_EQ(count(*g, "Sum"), 0u);
    EXPECT_EQ(g->find("y")->producer()->input(0)->producer()->input(3), g->find("a"));
  }
}

TEST(AccumulateGradients, ChainsSeveralTables) {
  for (const char* sums : {"%t = Sum(%a, %g)\n %u = Sum(%t, %h)", "%t = Sum(%g, %h)\n %u = Sum(%t, %a)"}) {
    auto g = resolved(kHead +
                      " %g = ai.ortmodule::GatherGrad(%dy, %i, %s)\n"
                      " %h = ai.ortmodule::EmbeddingGrad(%dz, %j, %s) {padding_idx=0}\n " +
                      sums + "\n %y = Relu(%u)");
    EXPECT_EQ(run_pass(make_pass("accumulate_gradients"), *g), 2u);
    EXPECT_EQ(count(*g, "Sum"), 0u);
  }
}

TEST(AccumulateGradients, LeavesValuesThatAreReadTwice) {
  auto g = resolved(kHead +
                    " %g = ai.ortmodule::GatherGrad(%dy, %i, %s)\n %t = Sum(%a, %g)\n %u = Mul(%t, %g)\n"
                    " %y = Relu(%u)");
  EXPECT_EQ(run_pass(make_pass("accumulate_gradients"), *g), 0u);
}

}  // namespace
}  // namespace ortmodule
