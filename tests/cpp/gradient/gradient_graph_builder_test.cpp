// Which backward nodes the gradient builder adds, and which it must not.
#include "gradient/gradient_graph_builder.h"

#include <algorithm>

#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;

GradientResult differentiate(Graph& graph, const std::vector<std::string>& xs) {
  GradientRequest request;
  request.ys = graph.outputs();
  for (const std::string& x : xs) request.xs.push_back(graph.find(x));
  GradientResult result = build_gradient(graph, request);
  for (NodeArg* dx : result.dxs)
    if (dx) graph.add_output(dx);
  verify_edges(graph);
  resolve(graph);  // sound types, and the list order is still topological
  return result;
}

std::vector<Node*> backward_nodes(const Graph& graph) {
  std::vector<Node*> out;
  graph.for_each([&](Node& node) {
    if (node.phase() == Phase::kBackward) out.push_back(&node);
  });
  return out;
}

bool any_reads(const std::vector<Node*>& nodes, const NodeArg* value) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const Node* node) {
    return std::find(node->inputs().begin(), node->inputs().end(), value) != node->inputs().end();
  });
}

TEST(GradientGraphBuilder, SumsTheGradientsOfAValueUsedTwice) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %h = Tanh(%x)\n %a = Neg(%h)\n %b = Exp(%h)\n %y = Mul(%a, %b)");
  const GradientResult result = differentiate(*g, {"x"});
  ASSERT_NE(result.dxs[0], nullptr);
  ASSERT_EQ(count(*g, "Sum"), 1u);
  for (Node* node : backward_nodes(*g)) {
    if (node->op() != "Sum") continue;
    EXPECT_NE(node->input(0), node->input(1));
    EXPECT_EQ(node->output(0)->uses().size(), 1u) << "both contributions reach Tanh's gradient as one";
  }
}

TEST(GradientGraphBuilder, AccumulatesPairwise) {
  auto g = resolved(R"(graph g(x: float[4]) -> (y)
 %h = Tanh(%x)
 %a = Neg(%h)
 %b = Exp(%h)
 %c = Sigmoid(%h)
 %d = Sqrt(%h)
 %ab = Add(%a, %b)
 %cd = Mul(%c, %d)
 %y = Mul(%ab, %cd))");
  differentiate(*g, {"x"});
  size_t sums = 0, contributions_before = 0, most_waiting = 0;
  const auto nodes = backward_nodes(*g);
  for (Node* node : nodes) {
    if (node->op() == "Sum") {
      ++sums;
      EXPECT_EQ(node->inputs().size(), 2u);
    }
  }
  EXPECT_EQ(sums, 3u);
  // A contribution that waits for its sum is a buffer held: never more than the running sum and the newest one.
  for (Node* node : nodes) {
    const bool contributes =
        node->op() != "Sum" && node->output(0)->uses().size() == 1 && node->output(0)->uses()[0].node->op() == "Sum";
    contributions_before += contributes;
    if (node->op() == "Sum") contributions_before = 1;
    most_waiting = std::max(most_waiting, contributions_before);
  }
  EXPECT_EQ(most_waiting, 2u);
}

TEST(GradientGraphBuilder, BuildsNothingForAFrozenInput) {
  const std::string text =
      "graph g(x: float[4, 3], w: float[3, 2], v: float[2, 5]) -> (y)\n %h = MatMul(%x, %w)\n %y = MatMul(%h, %v)";
  auto all = resolved(text), head = resolved(text);
  differentiate(*all, {"x", "w", "v"});
  differentiate(*head, {"v"});
  EXPECT_FALSE(any_reads(backward_nodes(*head), head->find("x")));
  EXPECT_FALSE(any_reads(backward_nodes(*head), head->find("w")));
  EXPECT_FALSE(any_reads(backward_nodes(*head), head->find("v"))) << "only the gradient of h reads v";
  EXPECT_TRUE(any_reads(backward_nodes(*all), all->find("v")));
  EXPECT_LT(backward_nodes(*head).size(), backward_nodes(*all).size());
}

TEST(GradientGraphBuilder, LeavesOutAnInputThatNoOutputDependsOn) {
  auto g = resolved("graph g(x: float[4], u: float[4]) -> (y)\n %y = Relu(%x)");
  const GradientResult result = differentiate(*g, {"x", "u"});
  EXPECT_NE(result.dxs[0], nullptr);
  EXPECT_EQ(result.dxs[1], nullptr);
}

TEST(GradientGraphBuilder, StopsAtStopGradient) {
  auto g =
      resolved("graph g(x: float[4]) -> (y)\n %h = Tanh(%x)\n %s = ai.ortmodule::StopGradient(%h)\n %y = Mul(%h, %s)");
  const GradientResult result = differentiate(*g, {"x"});
  EXPECT_NE(result.dxs[0], nullptr);
  EXPECT_EQ(count(*g, "Sum"), 0u) << "one path carries a gradient, the stopped one none";

  auto stopped = resolved("graph g(x: float[4]) -> (y)\n %s = ai.ortmodule::StopGradient(%x)\n %y = Exp(%s)");
  const GradientResult nothing = differentiate(*stopped, {"x"});
  EXPECT_EQ(nothing.dxs[0], nullptr);
  EXPECT_EQ(nothing.dys[0], nullptr) << "an output that reaches no input takes no gradient";
  EXPECT_TRUE(backward_nodes(*stopped).empty());
}

TEST(GradientGraphBuilder, StopsAtIntegers) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %i = Cast(%x) {to=7}\n %y = Cast(%i) {to=1}");
  EXPECT_EQ(differentiate(*g, {"x"}).dxs[0], nullptr);
}

TEST(GradientGraphBuilder, UndoesBroadcasting) {
  auto g = resolved(R"(graph g(x: float[batch, 3], row: float[3], column: float[batch, 1], one: float[]) -> (y)
 %a = Add(%x, %row)
 %b = Mul(%a, %column)
 %y = Sub(%b, %one))");
  const std::vector<std::string> names = {"x", "row", "column", "one"};
  const GradientResult result = differentiate(*g, names);
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_NE(result.dxs[i], nullptr) << names[i];
    EXPECT_EQ(result.dxs[i]->type().text(), g->find(names[i])->type().text()) << names[i];
  }
}

TEST(GradientGraphBuilder, GivesEachDifferentiableOutputItsGradientInput) {
  auto g = resolved("graph g(x: float[4]) -> (y, z, i)\n %y = Exp(%x)\n %z = Neg(%x)\n %i = Cast(%x) {to=7}");
  const GradientResult result = differentiate(*g, {"x"});
  ASSERT_EQ(result.dys.size(), 3u);
  ASSERT_NE(result.dys[0], nullptr);
  ASSERT_NE(result.dys[1], nullptr);
  EXPECT_TRUE(result.dys[0]->is_graph_input());
  EXPECT_EQ(result.dys[1]->type().text(), "float[4]");
  EXPECT_EQ(result.dys[2], nullptr);
  EXPECT_EQ(count(*g, "Sum"), 1u);
}

}  // namespace
}  // namespace ortmodule
