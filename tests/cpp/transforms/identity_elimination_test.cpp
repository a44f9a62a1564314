// Nodes that change nothing go; nodes that look like it stay.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

// The number of nodes left of a body between x and a final Relu, whose output is the graph's.
size_t left(const std::string& body, const TransformContext& context = {}) {
  auto g = resolved("graph g(x: float[batch, 4], s: int64[2]) -> (y)\n" + body + "\n %y = Relu(%e)");
  for (int round = 0; round < 3; ++round) run_pass(make_pass("identity_elimination"), *g, context);
  run_pass(make_pass("dead_node_elimination"), *g);
  return g->node_count() - 1;
}

TEST(IdentityElimination, RemovesNodesThatChangeNothing) {
  EXPECT_EQ(left("%e = Identity(%x)"), 0u);
  EXPECT_EQ(left("%e = Cast(%x) {to=1}"), 0u);
  EXPECT_EQ(left("%e = Transpose(%x) {perm=[0, 1]}"), 0u);
  EXPECT_EQ(left("%a = Transpose(%x)\n %e = Transpose(%a) {perm=[1, 0]}"), 0u);
  EXPECT_EQ(left("const %r: double[] = [0.5]\n %e = Dropout(%x, %r)"), 0u);
  EXPECT_EQ(left("const %r: double[] = [0]\n const %t: bool[] = [1]\n %e, %m = Dropout(%x, %r, %t)"), 0u);
}

TEST(IdentityElimination, ComparesSymbolicShapes) {
  EXPECT_EQ(left("%n = ai.ortmodule::Sizes() {exprs=[\"batch\", \"4\"]}\n %e = Reshape(%x, %n) {allowzero=1}"), 0u);
  EXPECT_EQ(left("%n = ai.ortmodule::Sizes() {exprs=[\"batch\", \"4\"]}\n %e = Expand(%x, %n)"), 0u);
  EXPECT_EQ(left("%n = ai.ortmodule::Sizes() {exprs=[\"4\", \"batch\"]}\n %e = Reshape(%x, %n) {allowzero=1}"), 2u);
}

TEST(IdentityElimination, JoinsChains) {
  EXPECT_EQ(left("const %n: int64[3] = [-1, 2, 2]\n const %m: int64[1] = [-1]\n %a = Reshape(%x, %n)\n"
                 "%e = Reshape(%a, %m)"),
            1u);
  EXPECT_EQ(left("%a = Cast(%x) {to=11}\n %e = Cast(%a) {to=1}"), 0u);
  EXPECT_EQ(left("%a = Cast(%x) {to=10}\n %e = Cast(%a) {to=1}"), 2u);  // rounds to 16 bits
}

TEST(IdentityElimination, RemovesASliceOfEverything) {
  const std::string head =
      "const %a: int64[1] = [0]\n const %z: int64[1] = [9223372036854775807]\n"
      "const %o: int64[1] = [1]\n const %m: int64[1] = [-1]\n const %l: int64[1] = [-9223372036854775807]\n";
  EXPECT_EQ(left(head + "%e = Slice(%x, %a, %z, %o, %o)"), 0u);
  EXPECT_EQ(left(head + "%e = Slice(%x, %m, %l, %o, %m)"), 1u);  // reversed
}

TEST(IdentityElimination, RemovesAnExpandWhereEveryReaderBroadcasts) {
  const std::string head =
      "%n = ai.ortmodule::Sizes() {exprs=[\"batch\", \"4\"]}\n const %l: int64[1] = [-1]\n"
      " %r = ReduceSum(%x, %l)\n %w = Expand(%r, %n)\n";
  EXPECT_EQ(left(head + "%e = Mul(%w, %x)"), 2u);
  EXPECT_EQ(left(head + "%e = Mul(%w, %r)"), 4u);                        // nothing else has the whole shape
  EXPECT_EQ(left(head + "%e = PRelu(%w, %x)"), 4u);                      // broadcasts one way
  EXPECT_EQ(left(head + "%a = Mul(%w, %x)\n %e = MatMul(%a, %w)"), 5u);  // a reader that needs the shape
}

TEST(IdentityElimination, KeepsDropoutThatDropsAndMasksThatAreRead) {
  EXPECT_EQ(left("const %r: double[] = [0.5]\n const %t: bool[] = [1]\n %e = Dropout(%x, %r, %t)"), 1u);
  EXPECT_EQ(left("const %r: double[] = [0]\n %d, %m = Dropout(%x, %r)\n %f = Cast(%m) {to=1}\n %e = Add(%d, %f)"), 3u);
}

TEST(IdentityElimination, KeepsWhatRoutesAGradientThatIsStillToBeBuilt) {
  for (const char* node : {"ai.ortmodule::StopGradient(%x)", "ai.ortmodule::WithValue(%x, %x)"}) {
    EXPECT_EQ(left(std::string("%e = ") + node, {.training = true}), 1u);
    EXPECT_EQ(left(std::string("%e = ") + node), 0u);
  }
}

TEST(IdentityElimination, KeepsGraphOutputs) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n %y = Identity(%x)");
  EXPECT_EQ(run_pass(make_pass("identity_elimination"), *g), 0u);
  EXPECT_EQ(g->outputs()[0]->name(), "y");
}

}  // namespace
}  // namespace ortmodule
