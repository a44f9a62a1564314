// What steps on several threads know of one another: which wait for which, what may be overwritten, who reads what.
#include "plan/parallel_steps.h"

#include <algorithm>

#include "plan/execution_plan.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

struct Planned {
  std::unique_ptr<Graph> graph;
  SlotTable slots;
  ExecutionPlan plan;

  explicit Planned(std::string_view text, bool parallel = true) : graph(resolved(text)) {
    PlanRequest request;
    request.outputs = graph->outputs();
    request.parallel = parallel;
    plan = make_plan(*graph, request, slots);
  }
  size_t place(const std::string& value) const {
    for (size_t i = 0; i < plan.steps.size(); ++i)
      if (plan.steps[i].node->output(0)->name() == value) return i;
    ADD_FAILURE() << "no step makes " << value;
    return 0;
  }
  std::vector<std::string> before(const std::string& value) const {
    std::vector<std::string> names;
    for (uint32_t i : plan.parallel->before[place(value)]) names.push_back(plan.steps[i].node->output(0)->name());
    return names;
  }
  // Whether the step that makes `value` may write over its operand `i`.
  bool overwrites(const std::string& value, size_t i = 0) const { return plan.steps[place(value)].last_use[i] != 0; }
  int readers(const std::string& value) const { return plan.parallel->readers[static_cast<size_t>(slots.find(value))]; }
};

using Names = std::vector<std::string>;

TEST(ParallelSteps, AStepWaitsForTheMakersOfItsOperands) {
  const Planned p("graph g(x: float[64]) -> (y)\n %a = Exp(%x)\n %b = Sin(%x)\n %c = Mul(%a, %a)\n %y = Add(%c, %b)");
  EXPECT_EQ(p.before("a"), Names());
  EXPECT_EQ(p.before("c"), Names({"a"}));
  EXPECT_EQ(p.before("y"), Names({"b", "c"}));
}

// The plan of one thread lets c write over a: its other reader was issued before. On several threads b may still read.
TEST(ParallelSteps, AnOperandIsOverwrittenOnlyBehindItsOtherReaders) {
  constexpr const char* kSideBySide =
      "graph g(x: float[64]) -> (y)\n %a = Exp(%x)\n %b = Sin(%a)\n %c = Neg(%a)\n %y = Add(%c, %b)";
  EXPECT_TRUE(Planned(kSideBySide, false).overwrites("c"));
  EXPECT_FALSE(Planned(kSideBySide).overwrites("c"));
  const Planned behind("graph g(x: float[64]) -> (y)\n %a = Exp(%x)\n %b = Sin(%a)\n %y = Add(%a, %b)");
  EXPECT_TRUE(behind.overwrites("y", 0));  // b is made before y begins
  EXPECT_TRUE(behind.overwrites("y", 1));
}

TEST(ParallelSteps, ReadersOfAViewCountForWhatItIsAViewOf) {
  constexpr const char* kView =
      "graph g(x: float[64]) -> (y)\n const %s: int64[2] = [8, 8]\n const %f: int64[1] = [64]\n %a = Exp(%x)\n"
      " %v = Reshape(%a, %s)\n %b = Sin(%v)\n %c = Neg(%a)\n %d = Reshape(%b, %f)\n %y = Add(%c, %d)";
  EXPECT_TRUE(Planned(kView, false).overwrites("c"));
  EXPECT_FALSE(Planned(kView).overwrites("c"));
  EXPECT_FALSE(Planned(kView).overwrites("b"));
}

TEST(ParallelSteps, RandomDrawsFollowOneAnother) {
  const Planned p(
      "graph g(x: float[64]) -> (y)\n %a = RandomNormalLike(%x)\n %b = RandomUniformLike(%x)\n %c = Exp(%x)\n"
      " %d = Add(%a, %b)\n %y = Add(%c, %d)");
  EXPECT_EQ(p.before("b"), Names({"a"}));
  EXPECT_EQ(p.before("c"), Names());
}

TEST(ParallelSteps, ReadersAreCountedOfWhatIsLetGoOf) {
  const Planned p("graph g(x: float[64]) -> (y)\n %a = Exp(%x)\n %b = Mul(%a, %a)\n %c = Neg(%a)\n %y = Add(%b, %c)");
  EXPECT_EQ(p.readers("a"), 2);
  EXPECT_EQ(p.readers("b"), 1);
  EXPECT_EQ(p.readers("y"), -1);
  EXPECT_EQ(p.readers("x"), 1);
}

TEST(ParallelSteps, WhatMovesLittleIsLight) {
  const Planned p(
      "graph g(x: float[512, 512], s: float[4]) -> (y, t, v)\n const %w: int64[1] = [262144]\n %y = Exp(%x)\n"
      " %t = Exp(%s)\n %v = Reshape(%x, %w)");
  const auto light = [&](const std::string& value) { return p.plan.parallel->light[p.place(value)] != 0; };
  EXPECT_FALSE(light("y"));
  EXPECT_TRUE(light("t"));
  EXPECT_TRUE(light("v"));
  const Planned product("graph g(x: float[64, 64]) -> (y)\n %y = MatMul(%x, %x)");
  EXPECT_FALSE(product.plan.parallel->light[0]);  // half a million operations on 48 KiB
}

TEST(ParallelSteps, ThePlansTextSaysWhatWaits) {
  const Planned p("graph g(x: float[64]) -> (y)\n %a = Exp(%x)\n %b = Sin(%a)\n %y = Add(%a, %b)");
  EXPECT_NE(p.plan.text().find("after 0 1"), std::string::npos) << p.plan.text();
}

// A long chain beside a value that is read at both of its ends: the search gives up and forbids.
TEST(ParallelSteps, LargeGraphsArePlannedInSeconds) {
  std::string text = "graph g(x: float[64]) -> (y)\n %a0 = Exp(%x)\n %b = Sin(%a0)\n %c0 = Neg(%b)\n";
  constexpr int kLength = 20'000;
  for (int i = 1; i < kLength; ++i) text += " %a" + std::to_string(i) + " = Add(%a" + std::to_string(i - 1) + ", %x)\n";
  text += " %y = Add(%a" + std::to_string(kLength - 1) + ", %b)";
  const Planned p(text);
  EXPECT_FALSE(p.overwrites("y", 1) && p.before("y").empty());
}

}  // namespace
}  // namespace ortmodule
