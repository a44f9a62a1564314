// What waits for what in plans of several streams, and that nothing waits twice.
#include "plan/streams.h"

#include "placement/partition.h"
#include "records/resolve.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

struct Planned {
  std::unique_ptr<Graph> graph;
  ExecutionPlan plan;
  size_t waits() const {
    size_t count = plan.ends.size();
    for (const Step& step : plan.steps) count += step.waits.size();
    return count;
  }
  const Step& step(const char* op, size_t skip = 0) const {
    for (const Step& one : plan.steps)
      if (one.node->op() == op && skip-- == 0) return one;
    throw std::runtime_error(op);
  }
};

Planned planned(const std::string& text, const std::vector<ProviderSpec>& specs, const std::string& home) {
  Planned made{resolved(text), {}};
  place(*made.graph, make_providers(specs, home), 100);
  resolve(*made.graph, {.infer = false});
  PlanRequest request;
  request.name = "forward";
  request.outputs = made.graph->outputs();
  SlotTable slots;
  made.plan = make_plan(*made.graph, request, slots);
  return made;
}

TEST(Streams, AGraphWithoutPlacesHasOne) {
  auto g = resolved("graph g(x: float[4]) -> (y)\n %y = Relu(%x)");
  PlanRequest request;
  request.outputs = g->outputs();
  SlotTable slots;
  const ExecutionPlan plan = make_plan(*g, request, slots);
  EXPECT_FALSE(plan.placed);
  EXPECT_EQ(plan.streams.size(), 1u);
}

TEST(Streams, ADeviceAloneWaitsForNothing) {
  const Planned p = planned("graph g(x: float[4]) -> (y)\n %a = Relu(%x)\n %y = Exp(%a)", {}, "cuda:0");
  EXPECT_EQ(p.waits(), 0u);
}

TEST(Streams, TheHostWaitsForWhatItReadsOnce) {
  const Planned p = planned("graph g(x: float[4]) -> (y, z)\n %a = Relu(%x)\n %y = Exp(%a)\n %z = Neg(%a)",
                            {{"cuda:0", {{"operators", "Relu"}}}}, "cuda:0");
  EXPECT_EQ(p.step("Exp").waits.size(), 1u);
  EXPECT_TRUE(is_host(p.plan.streams[p.step("Exp").waits[0].stream]));
  EXPECT_TRUE(p.step("Neg").waits.empty()) << "the same copy";
  EXPECT_TRUE(p.step("Exp").triggers) << "its result goes back";
}

TEST(Streams, WhatComesFromTheHostIsAwaitedAndHeld) {
  const Planned p = planned("graph g(x: float[4, 4]) -> (y)\n %a = Relu(%x)\n %y = MatMul(%a, %a)",
                            {{"cuda:0", {{"operators", "MatMul"}}}}, "cpu");
  const Step& copy = p.step("MemcpyToDevice");
  EXPECT_EQ(p.plan.streams[copy.stream].role, LogicStream::Role::kTransfer);
  EXPECT_EQ(copy.held.size(), 1u);
  const Step& product = p.step("MatMul");
  ASSERT_EQ(product.waits.size(), 1u);
  EXPECT_EQ(product.waits[0].stream, product.stream);
  EXPECT_FALSE(product.foreign.empty());
  ASSERT_EQ(p.plan.ends.size(), 1u) << "the host waits for the result, and so for the copy that it came of";
  EXPECT_NE(p.plan.text().find("Barrier"), std::string::npos);
}

TEST(Streams, ADeviceWaitsForAnother) {
  const Planned p =
      planned("graph g(x: float[4, 4]) -> (y)\n %y = Relu(%x)", {{"cuda:1", {{"operators", "Relu"}}}}, "cuda:0");
  EXPECT_EQ(p.plan.begins.size(), 1u) << "what made x, before the plan";
  EXPECT_EQ(p.step("MemcpyToDevice").waits.size(), 1u);
  EXPECT_EQ(p.step("MemcpyToDevice", 1).waits.size(), 1u);
  EXPECT_TRUE(p.plan.ends.empty());
}

}  // namespace
}  // namespace ortmodule
