// The manager: levels, rounds, records, errors; and cost at 100,000 nodes.
#include "transforms/transformer.h"

#include <chrono>

#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

class Fake : public GraphTransformer {
 public:
  Fake(const char* name, std::function<size_t(Graph&)> act) : name_(name), act_(std::move(act)) {}
  const char* name() const override { return name_; }
  size_t apply(Graph& graph, const TransformContext&) override { return act_(graph); }

 private:
  const char* name_;
  std::function<size_t(Graph&)> act_;
};

std::unique_ptr<GraphTransformer> fake(const char* name, std::function<size_t(Graph&)> act) {
  return std::make_unique<Fake>(name, std::move(act));
}

TEST(TransformerManager, RunsAgainUntilNothingChanges) {
  int left = 3;
  TransformerManager manager;
  manager.add(fake("shrink", [&](Graph&) { return left > 0 ? left-- : 0; }), PassLevel::kBasic);
  Graph g;
  EXPECT_EQ(manager.run(g, {}), 6u);
  EXPECT_EQ(manager.records()[0].runs, 4u);
  EXPECT_EQ(manager.records()[0].modifications, 6u);
}

TEST(TransformerManager, StopsAfterTheGivenRounds) {
  TransformerManager manager({.max_rounds = 3});
  manager.add(fake("restless", [](Graph&) { return 1; }), PassLevel::kBasic);
  Graph g;
  EXPECT_EQ(manager.run(g, {}), 3u);
}

TEST(TransformerManager, RunsOnlyTheLevelsAskedFor) {
  TransformerManager manager({.level = PassLevel::kRequired});
  manager.add(fake("basic", [](Graph&) -> size_t { throw std::logic_error("not asked for"); }), PassLevel::kBasic);
  Graph g;
  EXPECT_EQ(manager.run(g, {}), 0u);
}

TEST(TransformerManager, NamesThePassThatFailedAndThoseBefore) {
  TransformerManager manager;
  manager.add(fake("first", [](Graph&) { return 1; }), PassLevel::kBasic);
  manager.add(fake("second", [](Graph&) -> size_t { fail(ErrorCode::kInvalidGraph, "broken"); }), PassLevel::kBasic);
  Graph g;
  expect_error(ErrorCode::kInvalidGraph, "broken [in the pass second; ran before: first]", [&] { manager.run(g, {}); });
}

TEST(TransformerManager, VerifiesAfterEachPass) {
  TransformerManager manager({.verify = true});
  auto g = resolved("graph g(x: float[2]) -> (y)\n %a = Relu(%x)\n %y = Relu(%a)");
  manager.add(fake("loops",
                   [](Graph& graph) {
                     graph.find("a")->producer()->set_input(0, graph.find("y"));
                     return 1;
                   }),
              PassLevel::kBasic);
  expect_error(ErrorCode::kInvalidGraph, "in the pass loops", [&] { manager.run(*g, {}); });
}

// 100,000 nodes of every kind that a pass looks at, through the whole list.
TEST(TransformerManager, TakesAHundredThousandNodesInSeconds) {
  Graph g;
  NodeArg* x = g.add_input("x", {DType::kFloat, Shape{Dim::symbol("batch"), Dim(4)}});
  NodeArg* h = x;
  const auto emit = [&](const char* op, std::vector<NodeArg*> in, Attributes attributes = {}) {
    return g.add_node("", op, in, {""}, std::move(attributes))->output(0);
  };
  for (int i = 0; i < 12500; ++i) {
    NodeArg* one = g.constant(TensorData::scalar(DType::kFloat, i % 100 + 1));
    NodeArg* a = emit("Add", {h, one});
    NodeArg* b = emit("Add", {h, one});  // merged
    NodeArg* c = emit("Mul", {a, b});
    NodeArg* d = emit("Identity", {c});  // bypassed
    NodeArg* t = emit("Transpose", {d}, {{"perm", std::vector<int64_t>{1, 0}}});
    NodeArg* u = emit("Transpose", {t}, {{"perm", std::vector<int64_t>{1, 0}}});
    emit("Relu", {u});  // dead
    h = emit("Cast", {u}, {{"to", int64_t{1}}});
  }
  g.add_output(emit("Relu", {h}));
  const auto start = std::chrono::steady_clock::now();
  resolve(g);
  TransformerManager manager = make_passes(PassStage::kForward, {});
  manager.run(g, {.training = true, .grad_inputs = {x}});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  verify_edges(g);
  EXPECT_EQ(g.node_count(), 25001u);
  EXPECT_LT(seconds, 15.0);
  RecordProperty("seconds", std::to_string(seconds));
  std::cout << "100,001 nodes in " << seconds << " s\n";
}

TEST(WantsGradient, FollowsDifferentiableInputsOnly) {
  auto g = resolved(R"(graph g(x: float[2], w: float[2]) -> (y)
    %a = Mul(%x, %w)
    %s = ai.ortmodule::StopGradient(%a)
    %i = Cast(%a) {to=7}
    %y = Add(%s, %x))");
  const auto wants = wants_gradient(*g, {.grad_inputs = {g->find("w")}});
  EXPECT_TRUE(wants[g->find("a")->id()]);
  EXPECT_FALSE(wants[g->find("s")->id()]);
  EXPECT_FALSE(wants[g->find("i")->id()]);
  EXPECT_FALSE(wants[g->find("y")->id()]);
}

}  // namespace
}  // namespace ortmodule
