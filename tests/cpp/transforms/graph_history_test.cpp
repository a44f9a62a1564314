// What a pass did to a graph, as the history tells it.
#include "transforms/graph_history.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

const PassRun kRun{PassStage::kForward, "rewrite", 1, 1, 0.5};

TEST(GraphHistory, TellsWhatWentWhatCameAndWhatChanged) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n %a = Relu(%x)\n %b = Neg(%a)\n %y = Exp(%b)");
  GraphHistory history;
  history.stage("imported", 0.25, *g);
  Node* relu = g->find("a")->producer();
  Node* negative = g->find("b")->producer();
  Node* fresh = g->add_node("", "Abs", {g->find("x")}, {"c"}, {}, relu);
  g->find("y")->producer()->set_input(0, fresh->output(0));
  g->remove(negative);
  history.after(kRun, *g);

  ASSERT_EQ(history.events().size(), 2u);
  const GraphEvent &first = history.events()[0], &then = history.events()[1];
  EXPECT_EQ(first.stage, "imported");
  EXPECT_EQ(first.added.size(), 3u);
  EXPECT_EQ(first.added[0].second, -1);
  EXPECT_EQ(first.outputs, std::vector<std::string>{"y"});
  EXPECT_EQ(then.pass, "rewrite");
  EXPECT_EQ(then.round, 1);
  EXPECT_EQ(then.nodes, 3u);
  ASSERT_EQ(then.removed.size(), 1u);
  EXPECT_EQ(history.versions()[then.removed[0]].op, "Neg");
  ASSERT_EQ(then.added.size(), 1u);
  EXPECT_EQ(history.versions()[then.added[0].first].op, "Abs");
  EXPECT_EQ(then.added[0].second, -1);  // it stands at the front
  ASSERT_EQ(then.replaced.size(), 1u);
  EXPECT_EQ(history.versions()[then.replaced[0].first].inputs, std::vector<std::string>{"b"});
  EXPECT_EQ(history.versions()[then.replaced[0].second].inputs, std::vector<std::string>{"c"});
  EXPECT_TRUE(then.order.empty());
  EXPECT_TRUE(then.outputs.empty());
}

TEST(GraphHistory, TellsANewOrderOfWhatStayed) {
  auto g = resolved("graph g(x: float[2]) -> (a, b)\n %a = Relu(%x)\n %b = Neg(%x)");
  GraphHistory history;
  history.stage("imported", 0, *g);
  Node *a = g->find("a")->producer(), *b = g->find("b")->producer();
  g->move_before(b, a);
  history.after(kRun, *g);
  ASSERT_EQ(history.events().size(), 2u);
  EXPECT_EQ(history.events()[1].order, (std::vector<size_t>{b->id(), a->id()}));
}

TEST(GraphHistory, LeavesOutPassesThatChangeNothingAndWhatComesAfterTheEnd) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n %y = Relu(%x)");
  GraphHistory history;
  history.stage("imported", 0, *g);
  history.after(kRun, *g);
  PassRun none = kRun;
  none.modifications = 0;
  history.after(none, *g);
  EXPECT_EQ(history.events().size(), 1u);
  history.close();
  g->set_output(0, g->find("x"));
  g->remove(g->find("y")->producer());
  history.after(kRun, *g);
  EXPECT_EQ(history.events().size(), 1u);
}

TEST(GraphHistory, HoldsSmallIntegersAndNumbersAndNoTables) {
  auto g = resolved(
      "graph g(x: float[4]) -> (y)\n const %s: int64[2] = [2, 2]\n const %h: float[] = [0.5]\n"
      " const %w: float[4] = [1.5, 2.5, 3.5, 4.5]\n %a = Mul(%x, %h)\n %b = Add(%a, %w)\n %y = Reshape(%b, %s)");
  GraphHistory history;
  history.stage("imported", 0, *g);
  std::map<std::string, std::string> texts;
  for (const GraphSource& source : history.sources()) texts[source.name] = source.text;
  EXPECT_EQ(texts, (std::map<std::string, std::string>{{"x", ""}, {"s", "[2, 2]"}, {"h", "0.5"}, {"w", ""}}));
}

TEST(GraphHistory, CountsLongListsOfAttributes) {
  const auto g = parse_text(
      "graph g(x: float[4]) -> (y)\n"
      " %y = Some(%x) {few=[0.5, 1.5], many=[1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5], text=\"t\"}");
  GraphHistory history;
  history.stage("imported", 0, *g);
  const std::vector<std::pair<std::string, std::string>> attributes{
      {"few", "[0.5, 1.5]"}, {"many", "9 floats"}, {"text", "t"}};
  EXPECT_EQ(history.versions()[0].attributes, attributes);
}

}  // namespace
}  // namespace ortmodule
