// Casts of many inputs at once, floats from narrow products, sums of biases where they cost nothing.
#include "transforms/join_launches.h"

#include "support.h"
#include "transforms/earlier_values.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;

size_t run(Graph& graph, const std::vector<const char*>& backward = {}) {
  for (const char* value : backward) graph.find(value)->producer()->set_phase(Phase::kBackward);
  const size_t changed = join_launches(graph);
  verify_edges(graph);
  resolve(graph);
  return changed;
}

TEST(JoinLaunches, CopiesOfInputsAreOneNodeUnderTheirOwnNames) {
  auto g = resolved(R"(graph g(x: bfloat16[4, 8], v: float[8, 8], w: float[8, 8], b: float[8]) -> (z)
    %v1 = Cast(%v) {to=16}
    %y = ai.ortmodule::Linear(%x, %v1, _)
    %w1 = Cast(%w) {to=16}
    %b1 = Cast(%b) {to=16}
    %z = ai.ortmodule::Linear(%y, %w1, %b1))");
  EXPECT_EQ(run(*g, {"y", "z"}), 2u);
  EXPECT_EQ(count(*g, "Cast"), 0u);
  const Node* all = g->find("w1")->producer();
  EXPECT_EQ(all->qualified_op(), "ai.ortmodule::CastAll");
  EXPECT_EQ(g->find("b1")->producer(), all);
  EXPECT_EQ(g->nodes().front(), all);
  EXPECT_EQ(g->find("b1")->type().text(), "bfloat16[8]");
}

TEST(JoinLaunches, ACopyThatAProgramMakesInPassingStays) {
  auto g = resolved(R"(graph g(a: float[4, 8], b: float[4, 8], w: float[8, 8]) -> (y, z)
    %a1 = Cast(%a) {to=16}
    %y = Exp(%a1)
    %b1 = Cast(%b) {to=16}
    %w1 = Cast(%w) {to=16}
    %z = ai.ortmodule::Linear(%b1, %w1, _))");
  EXPECT_EQ(run(*g, {"z"}), 1u);
  EXPECT_EQ(count(*g, "Cast"), 1u);
}

TEST(JoinLaunches, ACopyThatForwardAloneReadsIsMadeWhereItIsRead) {
  auto g = resolved(R"(graph g(x: bfloat16[4, 8], v: float[8, 8], w: float[8, 8]) -> (z)
    %v1 = Cast(%v) {to=16}
    %y = ai.ortmodule::Linear(%x, %v1, _)
    %w1 = Cast(%w) {to=16}
    %z = ai.ortmodule::Linear(%y, %w1, _))");
  EXPECT_EQ(run(*g), 0u);
}

TEST(JoinLaunches, CopiesForWhatRunsAgainAreOneNode) {
  auto g = resolved("graph g(x: float[4, 8], s: float[8], b: float[8]) -> (z)\n %y = Mul(%x, %s)\n %z = Add(%y, %b)");
  EarlierValues earlier(*g);
  const NodeArg *s = earlier.copy_of(g->find("s")), *b = earlier.copy_of(g->find("b"));
  EXPECT_EQ(earlier.copy_of(g->find("s")), s);
  EXPECT_EQ(run(*g), 1u);
  EXPECT_EQ(s->producer(), b->producer());
  EXPECT_EQ(g->nodes().front(), s->producer());
}

TEST(JoinLaunches, GradientsOfConvolutionsAreWidenedTogether) {
  auto g = resolved(
      R"(graph g(dy: bfloat16[1, 2, 4, 4], x: bfloat16[1, 2, 4, 4], v: bfloat16[2, 2, 1, 1], w: bfloat16[2, 2, 1, 1]) -> (dv, dw)
    %dh, %narrow_v, _ = ai.ortmodule::ConvGrad(%dy, %x, %v)
    %dv = Cast(%narrow_v) {to=1}
    _, %narrow_w, _ = ai.ortmodule::ConvGrad(%dh, %x, %w)
    %dw = Cast(%narrow_w) {to=1})");
  EXPECT_EQ(run(*g, {"dh", "dv", "narrow_w", "dw"}), 1u);
  const Node* all = g->find("dv")->producer();
  EXPECT_EQ(all->qualified_op(), "ai.ortmodule::CastAll");
  EXPECT_EQ(g->find("dw")->producer(), all);
  EXPECT_EQ(all, g->nodes().back());
  EXPECT_EQ(all->phase(), Phase::kBackward);
}

TEST(JoinLaunches, CountersAreCountedUpByOneNode) {
  auto g = resolved(R"(graph g(a: int64[], b: int64[], c: int64[], x: float[]) -> (a1, b1, c1, y)
    const %one: int64[] = [1]
    const %two: int64[] = [2]
    %a1 = Add(%a, %one)
    %c1 = Add(%c, %two)
    %b1 = Add(%one, %b)
    %y = Add(%x, %x))");
  EXPECT_EQ(run(*g), 1u);
  const Node* all = g->find("a1")->producer();
  EXPECT_EQ(all->qualified_op(), "ai.ortmodule::AddAll");
  EXPECT_EQ(g->find("b1")->producer(), all);
  EXPECT_EQ(all->get_int("value", 0), 1);
  EXPECT_EQ(count(*g, "Add"), 2u);
}

TEST(JoinLaunches, AWeightsGradientIsAFloatOfNarrowFactors) {
  auto g = resolved(R"(graph g(dy: bfloat16[4, 8], x: bfloat16[4, 6], w: bfloat16[8, 6]) -> (dx, dw)
    %dx, %narrow, _ = ai.ortmodule::LinearGrad(%dy, %x, %w)
    %dw = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 1u);
  EXPECT_EQ(g->node_count(), 1u);
  const Node* node = g->find("dw")->producer();
  EXPECT_EQ(node, g->find("dx")->producer());
  EXPECT_EQ(node->get_int("wide", 0), 1);
  EXPECT_EQ(g->find("dw")->type().text(), "float[8, 6]");
}

TEST(JoinLaunches, AGradientThatSomebodyReadsNarrowStaysNarrow) {
  auto g = resolved(R"(graph g(dy: bfloat16[4, 8], x: bfloat16[4, 6]) -> (dw, narrow)
    _, %narrow, _ = ai.ortmodule::LinearGrad(%dy, %x, _)
    %dw = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 0u);
}

TEST(JoinLaunches, ABiasIsSummedBesideWhatMakesTheGradient) {
  auto g = resolved(R"(graph g(d: bfloat16[2, 4, 8], a: bfloat16[2, 4, 8], x: bfloat16[2, 4, 6]) -> (dw, db)
    %dy = Mul(%d, %a)
    _, %dw, %narrow = ai.ortmodule::LinearGrad(%dy, %x, _)
    %db = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 1u);
  const Node* sum = g->find("db")->producer();
  EXPECT_EQ(sum->op(), "ReduceSum");
  EXPECT_EQ(sum->input(0)->type().text(), "float[2, 4, 8]");
  const auto nodes = g->nodes();
  EXPECT_EQ(nodes.back(), g->find("dw")->producer()) << "the sum is in front of the product, which would part it";
}

TEST(JoinLaunches, ABiasOfWhatNoProgramMakesStaysWithTheProduct) {
  auto g = resolved(R"(graph g(d: float[4, 8], x: float[4, 6]) -> (dw, db)
    %dy = Softmax(%d)
    _, %dw, %db = ai.ortmodule::LinearGrad(%dy, %x, _))");
  EXPECT_EQ(run(*g), 0u);
}

TEST(JoinLaunches, PartsOfAJointProjectionAreSummedAsTheyAreJoined) {
  auto g = resolved(R"(graph g(q: bfloat16[4, 8], k: bfloat16[4, 3], x: bfloat16[4, 6]) -> (dw, db)
    %dy = Concat(%q, %k) {axis=1}
    _, %dw, %narrow = ai.ortmodule::LinearGrad(%dy, %x, _)
    %db = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 1u);
  const Node* both = g->find("db")->producer();
  EXPECT_EQ(both->qualified_op(), "ai.ortmodule::ConcatSum");
  EXPECT_EQ(both, g->find("dy")->producer());
  EXPECT_EQ(g->find("db")->type().text(), "float[11]");
  EXPECT_EQ(g->node_count(), 2u);
}

TEST(JoinLaunches, PartsAreFoundBehindViewsAndListsOfRows) {
  auto g = resolved(
      R"(graph g(q: bfloat16[2, 5, 1, 3, 4], k: bfloat16[2, 5, 1, 3, 4], r: int64[m], x: bfloat16[m, 6]) -> (dw, db)
    const %sizes: int64[2] = [-1, 24]
    %all = Concat(%q, %k) {axis=2}
    %some = ai.ortmodule::GatherRows(%all, %r) {lead=2}
    %dy = Reshape(%some, %sizes)
    _, %dw, %narrow = ai.ortmodule::LinearGrad(%dy, %x, _)
    %db = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 1u);
  EXPECT_EQ(count(*g, "Concat"), 0u);
  EXPECT_EQ(count(*g, "ai.ortmodule::GatherRows"), 2u);
  const Node* both = g->find("dy")->producer();
  EXPECT_EQ(both->qualified_op(), "ai.ortmodule::ConcatSum");
  EXPECT_EQ(both->input(1)->type().text(), "bfloat16[m, 12]");
}

TEST(JoinLaunches, RowsThatAReshapeMakesOfPartsAreNoPartsOfARow) {
  auto g = resolved(R"(graph g(q: bfloat16[2, 5, 4], k: bfloat16[2, 5, 4], x: bfloat16[20, 6]) -> (dw, db)
    const %sizes: int64[2] = [20, 4]
    %all = Concat(%q, %k) {axis=1}
    %dy = Reshape(%all, %sizes)
    _, %dw, %narrow = ai.ortmodule::LinearGrad(%dy, %x, _)
    %db = Cast(%narrow) {to=1})");
  run(*g);
  EXPECT_EQ(count(*g, "ai.ortmodule::ConcatSum"), 0u);
}

TEST(JoinLaunches, AProductThatIsAskedForItsBiasAloneIsGone) {
  auto g = resolved(R"(graph g(d: bfloat16[4, 8]) -> (db)
    %dy = Exp(%d)
    _, _, %narrow = ai.ortmodule::LinearGrad(%dy, _, _)
    %db = Cast(%narrow) {to=1})");
  EXPECT_EQ(run(*g), 1u);
  EXPECT_EQ(count(*g, "ai.ortmodule::LinearGrad"), 0u);
}

}  // namespace
}  // namespace ortmodule
