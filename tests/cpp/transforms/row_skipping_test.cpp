// Which nodes run on compact rows: label_compaction.cpp and padding_removal.cpp.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

TransformContext training(const Graph& g) {
  TransformContext context{.training = true};
  context.grad_inputs.insert(g.find("w"));
  return context;
}

std::unique_ptr<Graph> compacted(const std::string& inputs, const std::string& body,
                                 const std::string& outputs = "loss") {
  auto g = resolved("graph g(w: float[4096, 128], v: float[128, 128], labels: int64[64], " + inputs + ") -> (" +
                    outputs + ")\n const %last: int64[1] = [-1]\n" + body +
                    "\n %loss = SoftmaxCrossEntropyLoss(%s, %labels) {ignore_index=-100}");
  run_pass(make_pass("label_compaction"), *g, training(*g));
  return g;
}

// The shape of the value that the first GatherRows reads.
std::string gathered(const Graph& g) {
  std::string text;
  g.for_each([&](Node& node) {
    if (node.op() == "GatherRows" && is_floating(node.input(0)->type().dtype)) text += node.input(0)->name() + " ";
  });
  return text;
}

TEST(LabelCompaction, GathersBeforeTheFirstRowWiseNode) {
  const auto g = compacted("x: float[4, 16, 128]", R"(
    %h = ai.ortmodule::Linear(%x, %v)
    %n = Gelu(%h)
    %r = Add(%n, %x)
    %p = ai.ortmodule::Linear(%r, %w)
    const %flat: int64[2] = [64, 4096]
    %s = Reshape(%p, %flat))");
  EXPECT_EQ(gathered(*g), "x ");
  EXPECT_EQ(count(*g, "ai.ortmodule::LabelRows"), 1u);
}

TEST(LabelCompaction, StopsAtNodesThatMixRows) {
  const auto g = compacted("x: float[64, 128]", R"(
    %c = CumSum(%x, %zero)
    const %zero: int64[] = [0]
    %s = ai.ortmodule::Linear(%c, %w))");
  EXPECT_EQ(gathered(*g), "c ");
}

TEST(LabelCompaction, StopsAtValuesThatOthersRead) {
  const std::string body = "%h = ai.ortmodule::Linear(%x, %v)\n %s = ai.ortmodule::Linear(%h, %w)\n %o = Relu(%h)";
  EXPECT_EQ(gathered(*compacted("x: float[64, 128]", body, "loss, o")), "h ");
  EXPECT_EQ(gathered(*compacted("x: float[64, 128]", body, "loss, h")), "h ");
}

TEST(LabelCompaction, LeavesScoresThatAreAnOutput) {
  EXPECT_EQ(gathered(*compacted("x: float[64, 128]", "%s = ai.ortmodule::Linear(%x, %w)", "loss, s")), "");
}

// The labels are on a device then, and the host has to wait for them.
TEST(LabelCompaction, LeavesWorkThatIsLessThanAWaitForADevice) {
  const auto rows_with = [](const std::string& rows, const SymbolTable& sizes) {
    auto g = resolved("graph g(w: float[50000, 1024], x: float[" + rows + ", 1024], labels: int64[" + rows +
                      "]) -> (loss)\n %s = ai.ortmodule::Linear(%x, %w)\n" +
                      " %loss = SoftmaxCrossEntropyLoss(%s, %labels) {ignore_index=-100}");
    TransformContext context = training(*g);
    context.prices = prices_of("cuda");
    context.sizes = sizes;
    run_pass(make_pass("label_compaction"), *g, context);
    return count(*g, "ai.ortmodule::LabelRows");
  };
  EXPECT_EQ(rows_with("64", {}), 0u);
  EXPECT_EQ(rows_with("8192", {}), 1u);
  EXPECT_EQ(rows_with("n", {{"n", 64}}), 0u);
  EXPECT_EQ(rows_with("n", {{"n", 8192}}), 1u);
  EXPECT_EQ(rows_with("n", {}), 1u);
}

TEST(LabelCompaction, LeavesSmallWorkAndRandomDraws) {
  EXPECT_EQ(gathered(*compacted("x: float[64, 128], u: float[8, 128]", "%s = ai.ortmodule::Linear(%x, %u)")), "");
  const auto g = compacted("x: float[64, 128]", R"(
    const %half: float[] = [0.5]
    const %yes: bool[] = [1]
    %d = Dropout(%x, %half, %yes)
    %s = ai.ortmodule::Linear(%d, %w))");
  EXPECT_EQ(gathered(*g), "d ");
}

TEST(LabelCompaction, RunsOnce) {
  auto g = compacted("x: float[64, 128]", "%s = ai.ortmodule::Linear(%x, %w)");
  EXPECT_EQ(run_pass(make_pass("label_compaction"), *g, training(*g)), 0u);
}

std::unique_ptr<Graph> encoder(const std::string& mask, const std::string& attributes,
                               const std::string& outputs = "loss") {
  auto g = resolved(
      "graph g(w: float[4096, 128], v: float[512, 128], u: float[128, 512], labels: int64[512], "
      "ids: int64[8, 64], table: float[99, 128], mask: bool[8, 1, 1, 64]) -> (" +
      outputs + R"()
    const %heads: int64[4] = [0, 0, 4, 32]
    const %merged: int64[3] = [0, 0, 128]
    const %flat: int64[2] = [512, 4096]
    %e = ai.ortmodule::Embedding(%table, %ids)
    %f = ai.ortmodule::Linear(%e, %v)
    %x = ai.ortmodule::Linear(%f, %u)
    %h = Reshape(%x, %heads)
    %t = Transpose(%h) {perm=[0, 2, 1, 3]}
    %a = Attention(%t, %t, %t, )" +
      mask + ") {" + attributes + R"(}
    %b = Transpose(%a) {perm=[0, 2, 1, 3]}
    %m = Reshape(%b, %merged)
    %p = ai.ortmodule::Linear(%m, %w)
    %s = Reshape(%p, %flat)
    %loss = SoftmaxCrossEntropyLoss(%s, %labels) {ignore_index=-100})");
  run_pass(make_pass("label_compaction"), *g, training(*g));
  run_pass(make_pass("padding_removal"), *g, training(*g));
  run_pass(make_pass("dead_node_elimination"), *g, training(*g));
  return g;
}

TEST(PaddingRemoval, PacksEverythingButAttention) {
  const auto g = encoder("%mask", "is_causal=0");
  EXPECT_EQ(count(*g, "ai.ortmodule::AttendedRows"), 1u);
  EXPECT_EQ(count(*g, "ai.ortmodule::SpreadRows"), 1u);
  // The ids are what is gathered first.
  g->for_each([](Node& node) {
    if (node.op() != "Embedding") return;
    ASSERT_NE(node.input(1)->producer(), nullptr);
    EXPECT_EQ(node.input(1)->producer()->op(), "GatherRows");
  });
}

TEST(PaddingRemoval, NeedsAMaskOrACausalOrder) {
  EXPECT_EQ(count(*encoder("_", "is_causal=0"), "ai.ortmodule::AttendedRows"), 0u);
  EXPECT_EQ(count(*encoder("_", "is_causal=1"), "ai.ortmodule::AttendedRows"), 1u);
}

TEST(PaddingRemoval, LeavesWhatTheCallerSees) {
  EXPECT_EQ(count(*encoder("%mask", "is_causal=0", "loss, x"), "ai.ortmodule::AttendedRows"), 0u);
  EXPECT_EQ(count(*encoder("%mask", "is_causal=0", "loss, s"), "ai.ortmodule::AttendedRows"), 0u);
}

size_t fused(const std::string& body, const std::string& outputs = "loss") {
  auto g = resolved("graph g(x: float[8, 512, 16], w: float[5000, 16], labels: int64[4096]) -> (" + outputs + R"()
    const %flat: int64[2] = [4096, 5000]
    %p = ai.ortmodule::Linear(%x, %w)
    %s = Reshape(%p, %flat)
    )" + body);
  run_pass(make_pass("fuse_vocabulary_loss"), *g, training(*g));
  EXPECT_EQ(g->outputs()[0]->name(), "loss");
  return count(*g, "ai.ortmodule::LinearCrossEntropy");
}

TEST(FuseVocabularyLoss, TakesLargeScoresThatNobodyElseReads) {
  EXPECT_EQ(fused("%loss = SoftmaxCrossEntropyLoss(%s, %labels)"), 1u);
  EXPECT_EQ(fused("%loss = SoftmaxCrossEntropyLoss(%s, %labels) {reduction=\"none\"}"), 0u);
  EXPECT_EQ(fused("%loss = SoftmaxCrossEntropyLoss(%s, %labels)", "loss, p"), 0u);
  EXPECT_EQ(fused("%loss, %q = SoftmaxCrossEntropyLoss(%s, %labels)", "loss, q"), 0u);
}

}  // namespace
}  // namespace ortmodule
