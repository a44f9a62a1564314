// Edges, ownership, removal, clones.
#include "graph/graph.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;

std::unique_ptr<Graph> diamond() {
  return parse_text(R"(graph g(x: float[4]) -> (d)
    %a = Relu(%x)
    %b = Neg(%a)
    %c = Exp(%a)
    %d = Add(%b, %c))");
}

TEST(Graph, KnowsProducersAndUses) {
  auto g = diamond();
  const NodeArg* a = g->find("a");
  EXPECT_EQ(a->producer()->op(), "Relu");
  EXPECT_EQ(a->uses().size(), 2u);
  EXPECT_EQ(g->find("x")->producer(), nullptr);
  EXPECT_TRUE(g->find("d")->is_graph_output());
  verify_edges(*g);
}

TEST(Graph, ReplacesEveryUseAndGraphOutput) {
  auto g = diamond();
  g->replace_all_uses(g->find("a"), g->find("x"));
  EXPECT_TRUE(g->find("a")->uses().empty());
  EXPECT_EQ(g->find("x")->uses().size(), 3u);
  g->replace_all_uses(g->find("d"), g->find("b"));
  EXPECT_EQ(g->outputs()[0], g->find("b"));
  EXPECT_FALSE(g->find("d")->is_graph_output());
  verify_edges(*g);
}

TEST(Graph, RefusesToRemoveANodeInUse) {
  auto g = diamond();
  expect_error(ErrorCode::kInternal, "'a' is in use", [&] { g->remove(g->find("a")->producer()); });
  expect_error(ErrorCode::kInternal, "'d' is in use", [&] { g->remove(g->find("d")->producer()); });
  g->clear_outputs();
  g->remove(g->find("d")->producer());
  EXPECT_EQ(g->find("d"), nullptr);
  EXPECT_EQ(g->node_count(), 3u);
  verify_edges(*g);
}

TEST(Graph, RefusesASecondValueOfOneNameAndStaysAsItWas) {
  auto g = diamond();
  expect_error(ErrorCode::kInvalidGraph, "'a' is given to two values",
               [&] { g->add_node("", "Add", {g->find("x"), g->find("x")}, {"fresh", "a"}); });
  expect_error(ErrorCode::kInvalidGraph, "'y' is given to two values",
               [&] { g->add_node("", "Split", {g->find("x")}, {"y", "y"}); });
  EXPECT_EQ(g->find("fresh"), nullptr);
  EXPECT_EQ(g->find("x")->uses().size(), 1u);
  verify_edges(*g);
}

TEST(Graph, ClonesWithoutSharing) {
  auto g = diamond();
  g->find("b")->producer()->metadata()["source"] = "model.py:3";
  auto copy = g->clone();
  EXPECT_EQ(to_text(*copy), to_text(*g));
  copy->replace_all_uses(copy->find("a"), copy->find("x"));
  EXPECT_EQ(g->find("a")->uses().size(), 2u);
  EXPECT_EQ(copy->find("b")->producer()->id(), g->find("b")->producer()->id());
  verify_edges(*copy);
  verify_edges(*g);
}

TEST(Graph, SharesEqualConstants) {
  Graph g;
  NodeArg* one = g.constant(TensorData::scalar(DType::kFloat, 1));
  EXPECT_EQ(g.constant(TensorData::scalar(DType::kFloat, 1)), one);
  EXPECT_NE(g.constant(TensorData::scalar(DType::kDouble, 1)), one);
  g.remove_unused_initializers();
  EXPECT_TRUE(g.initializers().empty());
  EXPECT_NE(g.constant(TensorData::scalar(DType::kFloat, 1)), nullptr);
}

TEST(Graph, DropsAnUnusedOutputOnly) {
  auto g = parse_text(R"(graph g(x: float[4]) -> (y)
    %y, %mask = Dropout(%x))");
  Node* node = g->find("y")->producer();
  expect_error(ErrorCode::kInternal, "in use", [&] { g->drop_output(node, 0); });
  g->drop_output(node, 1);
  EXPECT_EQ(node->outputs().size(), 1u);
  EXPECT_EQ(g->find("mask"), nullptr);
}

TEST(Graph, RefusesAnInitializerWithTheWrongNumberOfBytes) {
  Graph g;
  TensorData t = TensorData::of_ints({1, 2});
  t.dims = {3};
  expect_error(ErrorCode::kInvalidGraph, "16 bytes for 3 elements", [&] { g.add_initializer("w", t); });
}

// A scalar that every node reads: removing its uses one by one must not be quadratic.
TEST(Graph, RemovesAHundredThousandUsesOfOneValue) {
  Graph g;
  NodeArg* x = g.add_input("x", {DType::kFloat, Shape{}});
  for (int i = 0; i < 100000; ++i) g.add_node("", "Relu", {x}, {""});
  for (Node* node : g.nodes()) g.remove(node);
  EXPECT_TRUE(x->uses().empty());
}

TEST(Graph, NamesAnAttributeOfTheWrongKind) {
  auto g = parse_text("graph g(x: float[4]) -> (y)\n %y = Softmax(%x) {axis=\"last\"} @{name=\"sm\"}");
  expect_error(ErrorCode::kInvalidGraph, "'axis' should be of kind int, got string (Softmax node 'sm')",
               [&] { g->find("y")->producer()->get_int("axis", 0); });
}

TEST(Graph, RoundsScalarConstantsOnce) {
  EXPECT_EQ(TensorData::scalar(DType::kFloat16, 65504.0).to_doubles()[0], 65504.0);
  EXPECT_EQ(TensorData::scalar(DType::kBFloat16, 1.0 + 1.0 / 256).to_doubles()[0], 1.0);  // ties to even
  EXPECT_EQ(TensorData::scalar(DType::kFloat16, -0.1).to_doubles()[0], -0.0999755859375);
  EXPECT_EQ(TensorData::scalar(DType::kInt8, -5).to_ints()[0], -5);
}

}  // namespace
}  // namespace ortmodule
