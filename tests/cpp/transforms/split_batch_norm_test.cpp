// Batch norm as sums and element by element; ReLU's gradient found again where ReLU alone reads the result.
#include "transforms/split_batch_norm.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;

size_t run(Graph& graph) {
  const size_t changed = split_batch_norm(graph);
  verify_edges(graph);
  resolve(graph);
  return changed;
}

constexpr const char* kForward = R"(graph g(x: bfloat16[4, 8, 5, 5], w: float[8], b: float[8], m: float[8], v: float[8],
      dz: bfloat16[4, 8, 5, 5]) -> (z, nm, nv, dx, dw, db)
    %y, %nm, %nv, %mean, %invstd, %reserve = ai.ortmodule::BatchNormTraining(%x, %w, %b, %m, %v) {epsilon=1e-3}
)";

TEST(SplitBatchNorm, ReluItsGradientAndXsAreMadeElementByElement) {
  auto g = resolved(std::string(kForward) + R"(    %z = Relu(%y)
    %dy = ai.ortmodule::ReluGrad(%dz, %z)
    %dx, %dw, %db = ai.ortmodule::BatchNormTrainingGrad(%dy, %x, %w, %mean, %invstd, %reserve))");
  EXPECT_EQ(run(*g), 2u);
  EXPECT_EQ(count(*g, "BatchNormTraining") + count(*g, "BatchNormTrainingGrad"), 0u);
  const Node* statistics = g->find("nm")->producer();
  EXPECT_EQ(statistics->op(), "BatchNormStatistics");
  EXPECT_FLOAT_EQ(statistics->get_float("epsilon", 0), 1e-3F);
  EXPECT_EQ(statistics->output(2)->type().text(), "float[8, 1, 1]");
  const Node* sums = g->find("dw")->producer();
  EXPECT_EQ(sums->op(), "BatchNormSums");
  EXPECT_EQ(sums->input(0), g->find("dz"));
  EXPECT_EQ(sums->input(5), statistics->output(2));
  const Node* dx = g->find("dx")->producer();
  EXPECT_EQ(dx->op(), "BatchNormInputGrad");
  EXPECT_EQ(dx->input(0)->producer()->op(), "ReluGrad");
  EXPECT_EQ(dx->input(0)->producer()->input(1)->producer()->op(), "BatchNormAffine");
}

TEST(SplitBatchNorm, WhatIsAddedBeforeReluLeavesItsGradientAsItIs) {
  auto g = resolved(std::string(kForward) + R"(    %s = Add(%y, %x)
    %z = Relu(%s)
    %dy = ai.ortmodule::ReluGrad(%dz, %z)
    %dx, %dw, %db = ai.ortmodule::BatchNormTrainingGrad(%dy, %x, %w, %mean, %invstd, %reserve))");
  EXPECT_EQ(run(*g), 2u);
  const Node* sums = g->find("dw")->producer();
  EXPECT_EQ(sums->input(0), g->find("dy"));
  EXPECT_EQ(sums->inputs().size(), 5u);
  EXPECT_EQ(g->find("dx")->producer()->input(0), g->find("dy"));
}

TEST(SplitBatchNorm, CubesAndDoublesStayWhole) {
  for (const char* x : {"float[4, 8, 5, 5, 5]", "double[4, 8, 5, 5]"}) {
    const std::string dtype = x[0] == 'd' ? "double[8]" : "float[8]";
    auto g = resolved("graph g(x: " + std::string(x) + ", w: " + dtype + ", b: " + dtype + ", m: " + dtype +
                      ", v: " + dtype + ") -> (y)\n    %y = ai.ortmodule::BatchNormTraining(%x, %w, %b, %m, %v)");
    EXPECT_EQ(run(*g), 0u);
  }
}

}  // namespace
}  // namespace ortmodule
