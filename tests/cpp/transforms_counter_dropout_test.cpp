// Counter-based dropout replaces the standard's where the user asked for it and nobody reads the mask.
#include "support.h"
#include "transforms/passes.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

size_t replaced(const std::string& node, TransformContext context) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n const %r: double[] = [0.5]\n const %t: bool[] = [1]\n" + node +
                    "\n %y = Relu(%d)");
  run_pass(make_counter_dropout(), *g, context);
  return count(*g, "ai.ortmodule::PhiloxDropout");
}

TEST(CounterDropout, ReplacesTrainingDropoutWhenAskedFor) {
  TransformContext fast{.training = true};
  fast.options.dropout = "fast";
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", fast), 1u);
  EXPECT_EQ(replaced("%d, %m = Dropout(%x, _, %t)", fast), 1u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t) {seed=7}", fast), 0u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r)", fast), 0u);
  EXPECT_EQ(replaced("%h, %m = Dropout(%x, %r, %t)\n %f = Cast(%m) {to=1}\n %d = Add(%h, %f)", fast), 0u);
}

TEST(CounterDropout, DoesNothingOtherwise) {
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", {.training = true}), 0u);
  TransformContext inference;
  inference.options.dropout = "fast";
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", inference), 0u);
}

}  // namespace
}  // namespace ortmodule
