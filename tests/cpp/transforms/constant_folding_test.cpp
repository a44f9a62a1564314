// What is known before the run becomes an initializer.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::expect_error;
using testing::resolved;
using testing::run_pass;

// Evaluates Neg on floats, and nothing else.
std::vector<TensorData> negate(const Node& node) {
  if (node.op() != "Neg") return {};
  return {TensorData::scalar(DType::kFloat, -node.input(0)->constant()->to_doubles()[0])};
}

TEST(ConstantFolding, FoldsChains) {
  auto g = resolved(R"(graph g(x: float[2]) -> (y)
    const %c: float[] = [2]
    %a = Neg(%c)
    %b = Neg(%a)
    %y = Add(%x, %b))");
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g, {.evaluate = negate}), 2u);
  EXPECT_EQ(g->find("y")->producer()->input(1)->constant()->to_doubles()[0], 2.0);
}

TEST(ConstantFolding, LeavesWhatItMustNot) {
  const char* text = R"(graph g(x: float[2]) -> (y, o)
    const %c: float[] = [2]
    const %r: double[] = [0.5]
    const %t: bool[] = [1]
    %a = Dropout(%c, %r, %t)
    %b = Exp(%c)
    %o = Neg(%c)
    %d = Add(%a, %b)
    %y = Add(%x, %d))";
  auto g = resolved(text);
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g, {.evaluate = negate}),
            0u);  // random, no evaluator, graph output
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g), 0u);
}

TEST(ConstantFolding, KeepsTrainedInitializersAndLargeResults) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n const %c: float[] = [2]\n %a = Neg(%c)\n %y = Add(%x, %a)");
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g, {.grad_inputs = {g->find("c")}, .evaluate = negate}), 0u);
  TransformContext small{.evaluate = negate};
  small.options.fold_limit_bytes = 3;
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g, small), 0u);
}

TEST(ConstantFolding, FoldsSizesThatBecameIntegers) {
  auto g = resolved(R"(graph g(x: float[2, 6], z: float[batch, 2]) -> (y, w)
    %s = Shape(%x)
    %y = Expand(%x, %s)
    %n = ai.ortmodule::Sizes() {exprs=["3*4"], scalar=1}
    %m = ai.ortmodule::Sizes() {exprs=["2*batch"]}
    %w = Reshape(%z, %m))");
  EXPECT_EQ(run_pass(make_pass("constant_folding"), *g), 2u);
  EXPECT_EQ(g->find("y")->producer()->input(1)->constant()->to_ints(), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(count(*g, "ai.ortmodule::Sizes"), 1u);  // the symbolic one
}

TEST(ConstantFolding, NamesTheNodeWhenTheEvaluatorDisagrees) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n const %c: float[] = [2]\n %a = Neg(%c)\n %y = Add(%x, %a)");
  const auto two = [](const Node&) { return std::vector<TensorData>(2, TensorData::scalar(DType::kFloat, 1)); };
  expect_error(ErrorCode::kInternal, "Neg node 'a'",
               [&] { make_pass("constant_folding")->apply(*g, {.evaluate = two}); });
}

}  // namespace
}  // namespace ortmodule
