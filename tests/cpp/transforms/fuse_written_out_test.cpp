// Gelu, layer norms and sums of products that are written out are one node.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::resolved;
using testing::run_pass;

const std::string kGelu =
    "graph g(x: float[b, 8]) -> (y)\n const %half: float[] = [0.5]\n const %one: float[] = [1]\n const %root: float[] "
    "= "
    "[1.41421354]\n const %inverse: float[] = [0.70710677]\n const %c: float[] = [0.044715]\n const %s: float[] = "
    "[0.79788458]\n const %three: float[] = [3]\n";

void expect_gelu(const std::string& text, const char* approximate) {
  auto g = resolved(kGelu + text + " %y = Neg(%r)");
  EXPECT_EQ(run_pass(make_pass("fuse_gelu"), *g), approximate ? 1u : 0u) << text;
  const Node* node = g->find("y")->producer()->input(0)->producer();
  if (!approximate) return;
  EXPECT_EQ(node->qualified_op(), "Gelu") << text;
  EXPECT_EQ(node->get_string("approximate", ""), approximate);
  EXPECT_EQ(node->input(0), g->find("x"));
}

TEST(FuseGelu, TakesTheErrorFunctionInAnyOrder) {
  expect_gelu(" %d = Div(%x, %root)\n %e = Erf(%d)\n %a = Add(%e, %one)\n %m = Mul(%x, %a)\n %r = Mul(%m, %half)\n",
              "none");
  expect_gelu(" %d = Mul(%inverse, %x)\n %e = Erf(%d)\n %a = Add(%one, %e)\n %m = Mul(%half, %x)\n %r = Mul(%m, %a)\n",
              "none");
}

TEST(FuseGelu, TakesTheTanhWithCubesAndSquares) {
  const std::string end = " %t = Tanh(%u)\n %a = Add(%t, %one)\n %m = Mul(%x, %half)\n %r = Mul(%m, %a)\n";
  expect_gelu(" %p = Pow(%x, %three)\n %k = Mul(%p, %c)\n %v = Add(%x, %k)\n %u = Mul(%v, %s)\n" + end, "tanh");
  expect_gelu(" %q = Mul(%x, %x)\n %k = Mul(%q, %c)\n %v = Add(%k, %one)\n %w = Mul(%x, %v)\n %u = Mul(%w, %s)\n" + end,
              "tanh");
}

TEST(FuseGelu, LeavesOtherNumbersAndWhatIsRead) {
  expect_gelu(" %d = Div(%x, %root)\n %e = Erf(%d)\n %a = Add(%e, %half)\n %m = Mul(%x, %a)\n %r = Mul(%m, %half)\n",
              nullptr);
  expect_gelu(" %d = Mul(%x, %half)\n %e = Erf(%d)\n %a = Add(%e, %one)\n %m = Mul(%x, %a)\n %r = Mul(%m, %half)\n",
              nullptr);
  expect_gelu(
      " %d = Div(%x, %root)\n %e = Erf(%d)\n %a = Add(%e, %one)\n %m = Mul(%x, %a)\n %n = Mul(%m, %half)\n"
      " %r = Add(%n, %a)\n",
      nullptr);
}

const std::string kNorm =
    "graph g(x: float[b, 2]) -> (y)\n const %e: float[] = [1e-5]\n const %two: float[] = [2]\n const %g: float[2] = "
    "[1, 2]\n"
    " const %k: float[2] = [3, 4]\n const %last: int64[1] = [-1]\n const %one: float[] = [1]\n";
const std::string kCentered = " %m = ReduceMean(%x, %last)\n %d = Sub(%x, %m)\n";

const Node* normed(const std::string& text, size_t count) {
  static std::vector<std::unique_ptr<Graph>> kept;
  kept.push_back(resolved(kNorm + text + " %y = Neg(%r)"));
  EXPECT_EQ(run_pass(make_pass("fuse_layer_norm"), *kept.back()), count) << text;
  return kept.back()->find("y")->producer()->input(0)->producer();
}

TEST(FuseLayerNorm, TakesSquaresAsPowAndMul) {
  for (const char* square : {" %p = Pow(%d, %two)\n", " %p = Mul(%d, %d)\n"}) {
    const Node* node = normed(kCentered + square +
                                  " %v = ReduceMean(%p, %last)\n %a = Add(%v, %e)\n %s = Sqrt(%a)\n %n = Div(%d, %s)\n"
                                  " %w = Mul(%n, %g)\n %r = Add(%w, %k)\n",
                              1);
    EXPECT_EQ(node->qualified_op(), "LayerNormalization");
    EXPECT_NE(node->input(2), nullptr);
    EXPECT_NEAR(node->get_float("epsilon", 0), 1e-5, 1e-9);
  }
}

TEST(FuseLayerNorm, TakesRootsOfSquaresAlone) {
  const Node* node = normed(
      " %p = Pow(%x, %two)\n %v = ReduceMean(%p, %last)\n %a = Add(%v, %e)\n %s = Sqrt(%a)\n %i = Reciprocal(%s)\n"
      " %n = Mul(%x, %i)\n %r = Mul(%g, %n)\n",
      1);
  EXPECT_EQ(node->qualified_op(), "RMSNormalization");
  const Node* without_bias =
      normed(kCentered +
                 " %p = Pow(%d, %two)\n %v = ReduceMean(%p, %last)\n %a = Add(%v, %e)\n %s = Sqrt(%a)\n"
                 " %n = Div(%d, %s)\n %r = Mul(%n, %g)\n",
             1);
  EXPECT_EQ(without_bias->qualified_op(), "LayerNormalization");
}

TEST(FuseLayerNorm, LeavesOtherMeans) {
  normed(
      " %p = Pow(%x, %two)\n %v = ReduceMean(%p, %last)\n %a = Add(%v, %e)\n %s = Sqrt(%a)\n %n = Div(%g, %s)\n"
      " %r = Mul(%n, %g)\n",
      0);
  normed(kCentered +
             " %p = Pow(%x, %two)\n %v = ReduceMean(%p, %last)\n %a = Add(%v, %e)\n %s = Sqrt(%a)\n"
             " %n = Div(%d, %s)\n %w = Mul(%n, %g)\n %r = Add(%w, %k)\n",
         0);
}

TEST(FuseMatMulAdd, MakesOneOfAProductAndABias) {
  const std::string begin =
      "graph g(x: float[b, 3, 2], z: float[2]) -> (y)\n const %w: float[2, 2] = [1, 2, 3, 4]\n"
      " const %k: float[2] = [5, 6]\n const %o: float[1] = [5]\n";
  for (const char* sum : {" %y = Add(%p, %k)", " %y = Add(%k, %p)"}) {
    auto g = resolved(begin + " %p = MatMul(%x, %w)\n" + sum);
    EXPECT_EQ(run_pass(make_pass("fuse_matmul_add"), *g), 1u);
    EXPECT_EQ(g->outputs()[0]->producer()->qualified_op(), "ai.ortmodule::Linear");
  }
  for (const char* rest : {" %y = Add(%p, %z)", " %y = Add(%p, %o)", " %q = Add(%p, %k)\n %y = Add(%q, %p)"}) {
    auto g = resolved(begin + " %p = MatMul(%x, %w)\n" + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_matmul_add"), *g), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
