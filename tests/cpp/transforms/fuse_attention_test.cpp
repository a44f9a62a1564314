// Attention that is written out is one node, and only where it is attention.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kInputs =
    "graph g(q: float[b, 4, s, 8], k: float[b, 4, t, 8], v: float[b, 4, t, 6], m: float[1, 1, s, t]) -> (y)\n"
    " const %a: float[] = [0.5]\n const %two: float[] = [2]\n const %zero: float[] = [0]\n const %one: float[] = [1]\n";
const std::string kKeys = " %kt = Transpose(%k) {perm=[0, 1, 3, 2]}\n";
const std::string kRest = " %n = IsNaN(%p)\n %w = Where(%n, %zero, %p)\n %z = MatMul(%w, %v)\n %y = Neg(%z)";

const Node* fused(Graph& graph) {
  EXPECT_EQ(run_pass(make_pass("fuse_attention"), graph), 1u);
  run_pass(make_pass("dead_node_elimination"), graph);
  const Node* node = graph.find("y")->producer()->input(0)->producer();
  EXPECT_EQ(node->qualified_op(), "Attention");
  EXPECT_EQ(graph.node_count(), 2u);
  EXPECT_EQ(node->input(0), graph.find("q"));
  EXPECT_EQ(node->input(1), graph.find("k"));
  EXPECT_EQ(node->input(2), graph.find("v"));
  return node;
}

TEST(FuseAttention, TakesScalesOnEitherSideAndAMask) {
  for (const std::string& scores :
       {std::string(" %x = Mul(%q, %a)\n %t = Mul(%kt, %a)\n %d = MatMul(%x, %t)\n %s = Add(%d, %m)\n"),
        std::string(" %d = MatMul(%q, %kt)\n %x = Mul(%a, %d)\n %e = Div(%x, %two)\n %s = Add(%m, %e)\n")}) {
    auto g = resolved(kInputs + kKeys + scores + " %p = Softmax(%s) {axis=-1}\n" + kRest);
    const Node* node = fused(*g);
    EXPECT_EQ(node->input(3), g->find("m"));
    EXPECT_DOUBLE_EQ(node->get_float("scale", 0), 0.25) << scores;
  }
}

TEST(FuseAttention, WithoutAMaskNothingHasToLookForNaN) {
  auto g = resolved(kInputs + kKeys +
                    " %s = MatMul(%q, %kt)\n %p = Softmax(%s) {axis=3}\n %z = MatMul(%p, %v)\n %y = Neg(%z)");
  const Node* node = fused(*g);
  EXPECT_EQ(node->input(3), nullptr);
  EXPECT_DOUBLE_EQ(node->get_float("scale", 0), 1);
}

TEST(FuseAttention, FindsKeysBetweenReshapesAndBehindOtherAxes) {
  auto reshaped = resolved(
      "graph g(q: float[2, 4, 5, 8], k: float[2, 4, 7, 8], v: float[2, 4, 7, 6]) -> (y)\n const %zero: float[] = [0]\n"
      " const %flat: int64[3] = [-1, 7, 8]\n const %whole: int64[4] = [2, 4, 8, 7]\n"
      " %r = Reshape(%k, %flat)\n %u = Transpose(%r) {perm=[0, 2, 1]}\n %kt = Reshape(%u, %whole)\n"
      " %s = MatMul(%q, %kt)\n %p = Softmax(%s)\n" +
      kRest);
  fused(*reshaped);
  auto turned = resolved(
      "graph g(q: float[b, 4, s, 8], k: float[b, t, 4, 8], v: float[b, 4, t, 6]) -> (y)\n const %zero: float[] = [0]\n"
      " %kt = Transpose(%k) {perm=[0, 2, 3, 1]}\n %s = MatMul(%q, %kt)\n %p = Softmax(%s)\n" +
      kRest);
  EXPECT_EQ(run_pass(make_pass("fuse_attention"), *turned), 1u);
  const Node* keys = turned->find("y")->producer()->input(0)->producer()->input(1)->producer();
  EXPECT_EQ(keys->get_ints("perm"), (std::vector<int64_t>{0, 2, 1, 3}));
}

TEST(FuseAttention, LeavesWhatIsNone) {
  const std::string scores = " %d = MatMul(%q, %kt)\n %s = Add(%d, %m)\n";
  for (const std::string& rest : {
           scores + " %p = Softmax(%s)\n %z = MatMul(%p, %v)\n %y = Neg(%z)",  // hidden rows are NaN
           scores + " %p = Softmax(%s) {axis=2}\n" + kRest,
           scores +
               " %p = Softmax(%s)\n %n = IsNaN(%p)\n %w = Where(%n, %one, %p)\n %z = MatMul(%w, %v)\n %y = Neg(%z)",
           scores + " %p = Softmax(%s)\n %n = IsNaN(%p)\n %w = Where(%n, %zero, %p)\n %z = MatMul(%w, %v)\n"
                    " %u = ReduceSum(%p)\n %y = Add(%z, %u)",  // somebody reads the probabilities
       }) {
    auto g = resolved(kInputs + kKeys + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_attention"), *g), 0u) << rest;
  }
  auto broadcast = resolved(
      "graph g(q: float[2, 4, 5, 8], k: float[1, 4, 7, 8], v: float[2, 4, 7, 6]) -> (y)\n const %zero: float[] = "
      "[0]\n" +
      kKeys + " %s = MatMul(%q, %kt)\n %p = Softmax(%s)\n" + kRest);
  EXPECT_EQ(run_pass(make_pass("fuse_attention"), *broadcast), 0u);
}

}  // namespace
}  // namespace ortmodule
