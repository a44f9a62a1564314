// Which values forward keeps, and that backward then reads nothing else.
#include "transforms/recompute.h"

#include <algorithm>

#include "gradient/gradient_graph_builder.h"
#include "plan/execution_plan.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;

struct Trained {
  std::unique_ptr<Graph> graph;
  std::vector<NodeArg*> dxs;

  // Names of the forward values that backward reads, inputs left out.
  std::vector<std::string> kept() const {
    std::vector<std::string> names;
    for (const NodeArg* value : saved_for_backward(*graph, dxs))
      if (value->producer()) names.push_back(value->name());
    std::sort(names.begin(), names.end());
    return names;
  }
};

Trained trained(std::string_view text, const std::vector<std::string>& xs) {
  Trained t{resolved(text), {}};
  GradientRequest request;
  request.ys = t.graph->outputs();
  for (const std::string& x : xs) request.xs.push_back(t.graph->find(x));
  t.dxs = build_gradient(*t.graph, request).dxs;
  for (NodeArg* dx : t.dxs)
    if (dx) t.graph->add_output(dx);
  resolve(*t.graph);
  return t;
}

RecomputeResult run(Trained& t, const std::vector<std::string>& readable, std::optional<double> budget = {}) {
  RecomputeOptions options;
  options.budget = budget;
  for (const std::string& name : readable) options.readable.insert(t.graph->find(name));
  const RecomputeResult result = recompute(*t.graph, options);
  verify_edges(*t.graph);
  resolve(*t.graph);
  return result;
}

constexpr const char* kTwoProducts = R"(graph g(x: float[64, 32], w: float[32, 32], v: float[32, 32]) -> (y)
 %h = MatMul(%x, %w)
 %e = Exp(%h)
 %r = Relu(%h)
 %s = Add(%e, %r)
 %y = MatMul(%s, %v))";

TEST(Recompute, PricesAreTheDevices) {
  // A product of 64 x 32 x 32 costs 5 KB of a host's traffic and next to nothing of a GPU's, beside which the
  // activation of 24 KB is dear.
  EXPECT_EQ(prices_of("cpu"), Prices());
  EXPECT_EQ(prices_of("").flops_per_byte, 10);
  const Prices& gpu = prices_of("cuda");
  EXPECT_GT(gpu.flops_per_byte, 20 * Prices().flops_per_byte);
  EXPECT_GT(gpu.host_bytes, 0);
  const auto repeated = [](const Prices& prices) {
    Trained t = trained(kTwoProducts, {"x", "w", "v"});
    RecomputeOptions options;
    options.prices = prices;
    for (const char* name : {"x", "w", "v"}) options.readable.insert(t.graph->find(name));
    return recompute(*t.graph, options).nodes;
  };
  EXPECT_GT(repeated(Prices()), 0u);
  EXPECT_EQ(repeated(gpu), 0u) << "each kernel costs a launch";
}

TEST(Recompute, OnAGpuAListOfRowsCountsAsLongAsItCanBe) {
  // Beside what a launch costs the activations of 64 rows are worth keeping, those of 65,536 are not.
  const auto kept = [](const char* flags) {
    auto t = trained(
        str("graph g(x: float[9, 64], flags: bool[", flags, "], w: float[64, 64]) -> (y)\n",
            " %p = Compress(%x, %flags) {axis=0}\n %h = MatMul(%p, %w)\n %r = Mul(%h, %h)\n", " %y = MatMul(%r, %w)"),
        {"w"});
    RecomputeOptions options;
    options.prices = prices_of("cuda");
    recompute(*t.graph, options);
    return t.kept();
  };
  EXPECT_TRUE(std::ranges::count(kept("64"), "r"));
  EXPECT_FALSE(std::ranges::count(kept("65536"), "r"));
}

TEST(Recompute, StreamingWorkIsRepeatedAndExponentialsAreKept) {
  Trained t = trained(
      "graph g(x: float[64, 32], w: float[32, 32], v: float[32, 32]) -> (y)\n %h = MatMul(%x, %w)\n"
      " %n = Sin(%h)\n %r = Relu(%n)\n %y = MatMul(%r, %v)",
      {"w", "v"});
  const auto before = t.kept();
  EXPECT_EQ(before, (std::vector<std::string>{"h", "r"}));
  const RecomputeResult result = run(t, {"w", "v"});
  EXPECT_EQ(result.nodes, 0u) << "r would need Sin again";
  Trained cheap = trained(
      "graph g(x: float[64, 32], w: float[32, 32], v: float[32, 32]) -> (y)\n"
      " %h = MatMul(%x, %w)\n %q = Mul(%h, %h)\n %r = Relu(%h)\n %y = MatMul(%r, %v)\n"
      " %u = Tanh(%q)",
      {"w", "v"});
  run(cheap, {"w", "v"});
  EXPECT_LE(cheap.kept().size(), 1u);
}

TEST(Recompute, AnActivationIsRepeatedWhereTheStepHardlyNotices) {
  const auto kept = [](const char* width) {
    std::string text =
        "graph g(x: float[64, W], w: float[W, W], v: float[W, W]) -> (y)\n %h = MatMul(%x, %w)\n"
        " %n = Gelu(%h)\n %y = MatMul(%n, %v)";
    for (size_t at; (at = text.find('W')) != std::string::npos;) text.replace(at, 1, width);
    Trained t = trained(text, {"w", "v"});
    run(t, {"w", "v"});
    return t.kept();
  };
  EXPECT_EQ(kept("4096"), std::vector<std::string>{"h"}) << "beside wide products";
  EXPECT_EQ(kept("32"), (std::vector<std::string>{"h", "n"})) << "beside narrow ones";
}

TEST(Recompute, ABudgetIsMetByRepeatingMore) {
  size_t last = SIZE_MAX;
  for (const double budget : {1.0, 0.6, 0.4}) {
    Trained t = trained(kTwoProducts, {"x", "w", "v"});
    const RecomputeResult result = run(t, {"x", "w", "v"}, budget);
    EXPECT_LE(result.kept_after, budget * result.kept_before);
    const size_t kept = t.kept().size();
    EXPECT_LE(kept, last);
    last = kept;
  }
}

TEST(Recompute, ABudgetNobodyCanMeetKeepsTheLeast) {
  Trained t = trained(kTwoProducts, {"x", "w", "v"});
  run(t, {"x", "w", "v"}, 1e-9);
  EXPECT_TRUE(t.kept().empty()) << "everything follows from the inputs";
}

TEST(Recompute, InputsThatBackwardMayNotReadAreNotRead) {
  Trained t = trained(
      "graph g(x: float[64, 32], b: float[64, 32], v: float[32, 32]) -> (y)\n %h = Add(%x, %b)\n"
      " %y = MatMul(%h, %v)",
      {"v"});
  run(t, {"v"}, 1e-9);
  EXPECT_EQ(t.kept(), std::vector<std::string>{"h"}) << "x and b belong to the caller, who may change them";
}

// What the node of that operator, in that half, reads.
std::vector<std::string> read_by(const Graph& graph, const char* op, Phase phase) {
  std::vector<std::string> names;
  graph.for_each([&](const Node& node) {
    if (node.qualified_op() != op || node.phase() != phase) return;
    for (const NodeArg* in : node.inputs()) names.push_back(in ? in->name() : "");
  });
  return names;
}

TEST(Recompute, ANodeThatRunsAgainReadsWhatAWeightWas) {
  const std::string text =
      "graph g(x: float[64, 32], w: float[32, 32], s: float[2, 32], b: float[32], v: float[32, 32]) -> (y)\n"
      " const %one: int64[] = [1]\n %h = MatMul(%x, %w)\n %row = Gather(%s, %one)\n %m = Mul(%h, %row)\n"
      " %r = Add(%m, %b)\n %y = MatMul(%r, %v)";
  Trained t = trained(text, {"w", "s", "b", "v"});
  run(t, {"w", "s", "b", "v"});
  EXPECT_EQ(t.kept(), (std::vector<std::string>{"b_then", "h", "row_then"}));
  EXPECT_EQ(read_by(*t.graph, "Add", Phase::kBackward), (std::vector<std::string>{"m_again", "b_then"}));
  const auto reads = read_by(*t.graph, "Mul", Phase::kBackward);
  EXPECT_TRUE(std::ranges::count(reads, "row_then")) << "to run again";
  EXPECT_TRUE(std::ranges::count(reads, "row_again")) << "as the gradient's own operand: the weight itself";
  EXPECT_EQ(read_by(*t.graph, "Gather", Phase::kBackward), (std::vector<std::string>{"s", "one"}));
  EXPECT_EQ(count(*t.graph, "ai.ortmodule::Copy"), 2u);
  // A backward for some outputs only finds the same copies.
  Trained again = trained(text, {"w", "s", "b", "v"});
  EXPECT_TRUE(recompute_from(*again.graph, {"b_then", "h", "row_then"}));
  EXPECT_EQ(again.kept(), t.kept());
}

TEST(Recompute, ACopyAsLargeAsWhatIsMadeOfItIsNotWorthIt) {
  Trained t = trained(
      "graph g(x: float[64, 32], b: float[64, 32], v: float[32, 32]) -> (y)\n %r = Relu(%b)\n %y = MatMul(%r, %v)",
      {"b", "v"});
  run(t, {"b", "v"});
  EXPECT_EQ(t.kept(), std::vector<std::string>{"r"});
  EXPECT_EQ(count(*t.graph, "ai.ortmodule::Copy"), 0u);
}

TEST(Recompute, DropoutMasksAreNotDrawnAgain) {
  Trained t = trained(
      "graph g(x: float[64, 32], w: float[32, 32], v: float[32, 32]) -> (y, z)\n const %r: double[] = [0.5]\n"
      " %h = MatMul(%x, %w)\n %state = ai.ortmodule::RandomState()\n"
      " %d = ai.ortmodule::PhiloxDropout(%h, %r, %state)\n %y = MatMul(%d, %v)\n %z = MatMul(%h, %v)",
      {"w", "v"});
  run(t, {"w", "v"});
  EXPECT_EQ(count(*t.graph, "ai.ortmodule::RandomState"), 1u);
  EXPECT_EQ(count(*t.graph, "ai.ortmodule::PhiloxDropout"), 3u) << "forward, again on the data, on the gradient";
  EXPECT_EQ(t.kept(), (std::vector<std::string>{"h", "state"}));
}

TEST(Recompute, OfARepeatedNodeOnlyWhatIsReadIsComputed) {
  Trained t = trained(R"(graph g(x: float[2, 16, 32, 32], w: float[16, 16, 3, 3]) -> (y)
 %h = Exp(%x)
 %p, %i = MaxPool(%h) {kernel_shape=[2, 2], strides=[2, 2]}
 %y = Conv(%p, %w) {pads=[1, 1, 1, 1]})",
                      {"x", "w"});
  ASSERT_GT(run(t, {"x", "w"}, 0.0).nodes, 0u);
  t.graph->for_each([&](const Node& node) {
    for (const NodeArg* out : node.outputs())
      EXPECT_TRUE(!out || out->is_graph_output() || !out->uses().empty()) << node.describe() << ": " << out->name();
  });
}

TEST(Recompute, AnotherBackwardMakesDoWithWhatForwardKeeps) {
  Trained t = trained(kTwoProducts, {"x", "w", "v"});
  EXPECT_TRUE(recompute_from(*t.graph, {"h"}));
  resolve(*t.graph);
  EXPECT_EQ(t.kept(), std::vector<std::string>{"h"});
  Trained random = trained(
      "graph g(x: float[64, 32], v: float[32, 32]) -> (y)\n %d, %m = Dropout(%x)\n"
      " %n = RandomNormalLike(%x)\n %s = Add(%x, %n)\n %y = MatMul(%s, %v)",
      {"x", "v"});
  EXPECT_FALSE(recompute_from(*random.graph, {})) << "the noise cannot be drawn again";
}

}  // namespace
}  // namespace ortmodule
