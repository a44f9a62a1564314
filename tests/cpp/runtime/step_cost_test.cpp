// What a node moves and computes.
#include "runtime/step_cost.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

StepCost cost_in(const std::string& text, const SymbolTable& sizes = {}) {
  const auto graph = resolved(text);
  return cost_of(*graph->nodes().back(), sizes);
}

TEST(StepCost, CountsEachInputOnceAndTheOutputs) {
  EXPECT_EQ(cost_in("graph g(x: float[3, 4]) -> (y)\n %y = Mul(%x, %x)").bytes, 4 * (12 + 12));
  EXPECT_EQ(cost_in("graph g(x: float[n, 4]) -> (y)\n %y = Relu(%x)", {{"n", 5}}).bytes, 4 * (20 + 20));
  EXPECT_EQ(cost_in("graph g(x: float[n, 4]) -> (y)\n %y = Relu(%x)").bytes, -1);
}

TEST(StepCost, KnowsNoBytesOfAView) {
  const std::string head = "graph g(x: float[3, 4]) -> (y)\n";
  EXPECT_EQ(cost_in(head + " %y = Transpose(%x) {perm=[1, 0]}").bytes, -1);
  EXPECT_EQ(cost_in(head + " %y = Cast(%x) {to=11}").bytes, 4 * 12 + 8 * 12);
  EXPECT_EQ(cost_in(head + " %y = ReduceSum(%x) {keepdims=0}").bytes, 4 * 12 + 4);
}

TEST(StepCost, CountsTheProductsOfGradients) {
  const std::string head = "graph g(d: float[2, 5], a: float[2, 3], b: float[3, 5]) -> (";
  const std::string op = " = ai.ortmodule::MatMulGrad(%d, ";
  EXPECT_EQ(cost_in(head + "p, q)\n %p, %q" + op + "%a, %b)").flops, 2 * 2 * (2 * 3 * 5));
  EXPECT_EQ(cost_in(head + "p)\n %p: float[2, 3], _" + op + "_, %b)").flops, 2 * (2 * 3 * 5));
  EXPECT_EQ(cost_in(head + "q)\n _, %q: float[3, 5]" + op + "%a, _)").flops, 2 * (2 * 3 * 5));
  EXPECT_EQ(
      cost_in("graph g(d: float[7, 5], x: float[7, 3]) -> (w)\n _, %w, _ = ai.ortmodule::LinearGrad(%d, %x, _)").flops,
      2 * 7 * 3 * 5);
}

TEST(StepCost, KnowsNoOperationsWithoutAFormulaOrASize) {
  EXPECT_EQ(cost_in("graph g(x: float[3]) -> (y)\n %y = Exp(%x)").flops, -1);
  const std::string product = "graph g(a: float[n, 3], b: float[3, 5]) -> (y)\n %y = MatMul(%a, %b)";
  EXPECT_EQ(cost_in(product).flops, -1);
  EXPECT_EQ(cost_in(product, {{"n", 4}}).flops, 2 * 4 * 3 * 5);
}

}  // namespace
}  // namespace ortmodule
