// Orders of a plan: what they change, what they never change, and that the greedy one holds no more than the default.
#include "plan/node_order.h"

#include <algorithm>
#include <map>
#include <random>

#include "plan/execution_plan.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

ExecutionPlan planned(const Graph& graph, ExecutionOrder order) {
  PlanRequest request;
  request.outputs = graph.outputs();
  request.order = order;
  SlotTable slots;
  return make_plan(graph, request, slots);
}

std::vector<std::string> made(const ExecutionPlan& plan) {
  std::vector<std::string> names;
  for (const Step& step : plan.steps) names.push_back(step.node->output(0)->name());
  return names;
}

// Two branches from a large value: each ends in a small one.
constexpr const char* kBranches =
    "graph g(x: float[1000]) -> (y)\n const %rows: int64[1] = [0]\n"
    " %a = Exp(%x)\n %b = Sin(%x)\n %c = Cos(%x)\n"
    " %p = ReduceSum(%a, %rows)\n %q = ReduceSum(%b, %rows)\n %r = ReduceSum(%c, %rows)\n"
    " %s = Add(%p, %q)\n %y = Add(%s, %r)";

TEST(NodeOrder, TheGreedyOrderEndsABranchBeforeItBeginsTheNext) {
  const auto graph = resolved(kBranches);
  EXPECT_EQ(made(planned(*graph, ExecutionOrder::kDefault)),
            (std::vector<std::string>{"a", "b", "c", "p", "q", "r", "s", "y"}));
  EXPECT_EQ(made(planned(*graph, ExecutionOrder::kMemory)),
            (std::vector<std::string>{"a", "p", "b", "q", "s", "c", "r", "y"}));
}

TEST(NodeOrder, SizesComeFirstByPriority) {
  const auto graph =
      resolved("graph g(x: float[n, 4]) -> (y, z)\n %a = Exp(%x)\n %y = Neg(%a)\n %s = Shape(%x)\n %z = Neg(%s)");
  const auto names = made(planned(*graph, ExecutionOrder::kPriority));
  EXPECT_EQ(names.front(), "s");
}

TEST(NodeOrder, RandomDrawsKeepTheirOrder) {
  const auto graph = resolved(
      "graph g(x: float[100]) -> (y)\n const %i: int64[1] = [0]\n %big = RandomNormalLike(%x)\n"
      " %small = RandomNormal() {shape=[1]}\n %s = ReduceSum(%big, %i)\n %y = Add(%s, %small)");
  for (const auto order : {ExecutionOrder::kPriority, ExecutionOrder::kMemory}) {
    const auto names = made(planned(*graph, order));
    EXPECT_LT(std::find(names.begin(), names.end(), "big"), std::find(names.begin(), names.end(), "small"));
  }
}

TEST(NodeOrder, NamesThatAreNoOrderAreRefused) {
  EXPECT_EQ(parse_order("priority_based"), ExecutionOrder::kPriority);
  expect_error(ErrorCode::kInvalidArgument, "'memory_efficient', got 'fast'", [] { parse_order("fast"); });
}

// Random graphs: each order runs every node once, after what it reads, and the greedy one's peak is no higher.
TEST(NodeOrder, EveryOrderRunsAndGreedyHoldsNoMore) {
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Graph graph;
    std::vector<NodeArg*> values{graph.add_input("x", {DType::kFloat, Shape{Dim(64)}})};
    for (int i = 0; i < 60; ++i) {
      const auto pick = [&] { return values[random() % values.size()]; };
      const char* ops[] = {"Exp", "Add", "Concat", "Transpose"};
      const size_t kind = random() % 4;
      const std::vector<NodeArg*> inputs = kind == 0 || kind == 3 ? std::vector{pick()} : std::vector{pick(), pick()};
      Attributes attributes;
      if (kind == 2) attributes["axis"] = int64_t{0};
      if (kind == 1 && inputs[0]->type().shape != inputs[1]->type().shape) continue;
      Node* node = graph.add_node("", ops[kind], inputs, {""}, attributes);
      infer_node(*node);
      values.push_back(node->output(0));
    }
    for (NodeArg* value : values)
      if (value->uses().empty() && value->producer()) graph.add_output(value);
    resolve(graph);
    OrderFacts facts{std::vector<double>(graph.value_id_bound(), 0), std::vector<char>(graph.value_id_bound(), 0)};
    for (const NodeArg* value : values) {
      facts.bytes[value->id()] = planned_bytes(*value, {});
      facts.stays[value->id()] = value->is_graph_output();
    }
    std::map<ExecutionOrder, double> peaks;
    for (const auto order : {ExecutionOrder::kDefault, ExecutionOrder::kPriority, ExecutionOrder::kMemory}) {
      const ExecutionPlan plan = planned(graph, order);
      std::vector<const Node*> nodes;
      for (const Step& step : plan.steps) {
        for (const NodeArg* in : step.node->inputs())
          EXPECT_TRUE(!in->producer() || std::count(nodes.begin(), nodes.end(), in->producer()) == 1);
        nodes.push_back(step.node);
      }
      EXPECT_EQ(nodes.size(), graph.node_count());
      peaks[order] = peak_of(nodes, facts);
    }
    EXPECT_LE(peaks[ExecutionOrder::kMemory], peaks[ExecutionOrder::kDefault]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ortmodule
