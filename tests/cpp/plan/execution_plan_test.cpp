// What a plan runs, in which order, and when it lets values go.
#include "plan/execution_plan.h"

#include <algorithm>
#include <set>

#include "gradient/gradient_graph_builder.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

ExecutionPlan forward_plan(const Graph& graph, SlotTable& slots, std::vector<char> keep = {}) {
  PlanRequest request;
  request.name = "forward";
  request.outputs = graph.outputs();
  request.keep = std::move(keep);
  return make_plan(graph, request, slots);
}

std::vector<std::string> ops(const ExecutionPlan& plan) {
  std::vector<std::string> out;
  for (const Step& step : plan.steps) out.push_back(step.node->op());
  return out;
}

std::set<int> released(const ExecutionPlan& plan) {
  std::set<int> out;
  for (const Step& step : plan.steps) {
    for (int slot : step.release) EXPECT_TRUE(out.insert(slot).second) << "slot " << slot << " is released twice";
  }
  return out;
}

using Slots = std::vector<int>;

TEST(ExecutionPlan, ReleasesAfterLastUse) {
  auto g = resolved(
      "graph g(x: float[4]) -> (y)\n %a = Neg(%x)\n %b = Exp(%a)\n %c = Tanh(%a)\n %d = Add(%b, %c)\n"
      " %y = Mul(%d, %x)");
  SlotTable slots;
  const ExecutionPlan plan = forward_plan(*g, slots);
  const auto& steps = plan.steps;
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(steps[0].release, Slots());
  EXPECT_EQ(steps[1].release, Slots()) << "Tanh still reads a";
  EXPECT_EQ(steps[2].release, Slots{slots.find("a")});
  EXPECT_EQ(steps[3].release, (Slots{slots.find("b"), slots.find("c")}));
  EXPECT_EQ(steps[3].last_use, (std::vector<char>{1, 1}));
  EXPECT_EQ(steps[1].last_use, (std::vector<char>{0}));
  EXPECT_FALSE(released(plan).count(slots.find("y"))) << "an output stays";
}

TEST(ExecutionPlan, ReleasesAnOutputThatNobodyReadsAtOnce) {
  auto g = resolved("graph g(x: float[4]) -> (a)\n const %k: int64[] = [2]\n %a, %b = Split(%x) {num_outputs=2}");
  SlotTable slots;
  const ExecutionPlan plan = forward_plan(*g, slots);
  EXPECT_TRUE(released(plan).count(slots.find("b")));
}

TEST(ExecutionPlan, LeavesOutUnneededNodes) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %unused = Exp(%x)\n %also = Tanh(%unused)\n %y = Neg(%x)");
  SlotTable slots;
  EXPECT_EQ(ops(forward_plan(*g, slots)), std::vector<std::string>{"Neg"});
  EXPECT_EQ(slots.find("unused"), -1);
}

TEST(ExecutionPlan, DoesNotOfferAnOperandThatIsReadTwiceForOverwriting) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %a = Neg(%x)\n %y = Mul(%a, %a)");
  SlotTable slots;
  const ExecutionPlan plan = forward_plan(*g, slots);
  const Step& square = plan.steps.at(1);
  EXPECT_EQ(square.last_use, (std::vector<char>{0, 0}));
  EXPECT_EQ(square.release, Slots{slots.find("a")});
}

TEST(ExecutionPlan, NeverReleasesAConstantAndFillsItOnce) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n const %k: float[] = [2]\n %a = Mul(%x, %k)\n %y = Add(%a, %k)");
  SlotTable slots;
  const ExecutionPlan plan = forward_plan(*g, slots);
  ASSERT_EQ(plan.constants.size(), 1u);
  EXPECT_EQ(plan.constants[0].second->name(), "k");
  EXPECT_FALSE(released(plan).count(plan.constants[0].first));
  EXPECT_EQ(plan.steps.at(1).last_use, (std::vector<char>{1, 0}));
}

class TrainingPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    graph_ = resolved("graph g(x: float[4], w: float[4]) -> (y)\n %p = Mul(%x, %w)\n %a = Tanh(%p)\n %y = Neg(%a)");
    const GradientResult gradient = build_gradient(*graph_, {graph_->outputs(), {graph_->find("w")}});
    dy_ = gradient.dys.at(0);
    dxs_ = gradient.dxs;
    resolve(*graph_);
    saved_ = saved_for_backward(*graph_, dxs_);
  }

  std::unique_ptr<Graph> graph_;
  NodeArg* dy_ = nullptr;
  std::vector<NodeArg*> dxs_, saved_;
};

TEST_F(TrainingPlan, KeepsWhatBackwardReads) {
  std::vector<char> keep(graph_->value_id_bound(), 0);
  std::set<std::string> names;
  for (const NodeArg* value : saved_) {
    keep[value->id()] = 1;
    names.insert(value->name());
  }
  EXPECT_TRUE(names.count("a") && names.count("x")) << "tanh' reads its result, the product's gradient x";
  EXPECT_FALSE(names.count("p") || names.count("y") || names.count("w"));
  SlotTable slots;
  const std::set<int> gone = released(forward_plan(*graph_, slots, keep));
  EXPECT_FALSE(gone.count(slots.find("a")));
  EXPECT_FALSE(gone.count(slots.find("x")));
  EXPECT_TRUE(gone.count(slots.find("p")));
}

TEST_F(TrainingPlan, ForwardRunsNoBackwardNode) {
  SlotTable slots;
  EXPECT_EQ(ops(forward_plan(*graph_, slots)), (std::vector<std::string>{"Mul", "Tanh", "Neg"}));
}

TEST_F(TrainingPlan, BackwardReadsOnlyWhatForwardSavedAndItsOwn) {
  SlotTable slots;
  forward_plan(*graph_, slots);
  PlanRequest request;
  request.name = "backward";
  request.phase = Phase::kBackward;
  request.outputs = dxs_;
  const ExecutionPlan plan = make_plan(*graph_, request, slots);
  std::set<int> known = {slots.find(dy_->name())};
  for (const NodeArg* value : saved_) known.insert(slots.find(value->name()));
  for (const auto& [slot, value] : plan.constants) known.insert(slot);
  ASSERT_GT(plan.steps.size(), 0u);
  for (const Step& step : plan.steps) {
    EXPECT_EQ(static_cast<int>(step.node->phase()), static_cast<int>(Phase::kBackward));
    for (int slot : step.inputs) EXPECT_TRUE(slot < 0 || known.count(slot)) << step.node->describe();
    known.insert(step.outputs.begin(), step.outputs.end());
  }
  EXPECT_TRUE(known.count(plan.output_slots.at(0)));
}

TEST(SlotTable, GivesOneSlotPerName) {
  auto g = resolved("graph g(x: float[4], w: float[4]) -> (y)\n %y = Mul(%x, %w)");
  auto copy = g->clone();
  SlotTable slots;
  const int x = slots.slot(*g->find("x"));
  EXPECT_NE(slots.slot(*g->find("w")), x);
  EXPECT_EQ(slots.slot(*copy->find("x")), x) << "a copy of the graph finds the same slot";
  EXPECT_EQ(slots.find("x"), x);
  EXPECT_EQ(slots.find("none"), -1);
  EXPECT_EQ(slots.size(), 2u);
}

TEST(ExecutionPlan, PrintsStepsAndReleases) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %a = Neg(%x)\n %y = Exp(%a)");
  SlotTable slots;
  const std::string text = forward_plan(*g, slots).text();
  EXPECT_NE(text.find("2 steps"), std::string::npos) << text;
  EXPECT_NE(text.find("Exp"), std::string::npos) << text;
  EXPECT_NE(text.find("release " + std::to_string(slots.find("a"))), std::string::npos) << text;
}

}  // namespace
}  // namespace ortmodule
