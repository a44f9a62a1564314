// Gradients of weights behind the gradient that shares an operand with what they read.
#include "transforms/late_weights.h"

#include "support.h"
#include "transforms/fuse.h"

namespace ortmodule {
namespace {

using testing::resolved;

// Values that backward makes are named so.
size_t run(Graph& graph, const std::vector<const char*>& backward) {
  for (const char* value : backward) graph.find(value)->producer()->set_phase(Phase::kBackward);
  const size_t delayed = delay_weight_gradients(graph);
  verify_edges(graph);
  resolve(graph);
  return delayed;
}

TEST(LateWeights, AnActivationAndItsGradientAreOneProgram) {
  auto g = resolved(R"(graph g(dy: float[4, 8], w: float[8, 16], a: float[4, 16], v: float[16, 6]) -> (dw, dz)
    %again = Gelu(%a)
    %dx, %dw = ai.ortmodule::LinearGrad(%dy, %again, %w)
    %da = ai.ortmodule::GeluGrad(%dx, %a)
    %dz = ai.ortmodule::LinearGrad(%da, _, %v))");
  ASSERT_EQ(run(*g, {"again", "dx", "da", "dz"}), 1u);
  const Node *dx = g->find("dx")->producer(), *dw = g->find("dw")->producer();
  EXPECT_NE(dx, dw);
  EXPECT_EQ(dx->input(1), nullptr);
  EXPECT_EQ(dw->input(2), nullptr);
  const std::vector<Node*> order = g->nodes();
  ASSERT_EQ(order.size(), 5u);
  EXPECT_EQ(order[0], dx);
  EXPECT_EQ(order[1], g->find("again")->producer());
  EXPECT_EQ(order[3], dw);
  const FusionResult fused = fuse(*g, [](const std::string&) { return prices_of("cuda"); });
  EXPECT_EQ(fused.nodes, 2u);
  EXPECT_EQ(fused.kernels, 1u);
}

TEST(LateWeights, AGateIsOneProgramWithItsGradients) {
  auto g = resolved(
      R"(graph g(dy: float[4, 8], w: float[8, 16], a: float[4, 16], up: float[4, 16], v: float[16, 6]) -> (dw, dz, dup)
    %s = Sigmoid(%a)
    %again = Mul(%s, %up)
    %dx, %dw = ai.ortmodule::LinearGrad(%dy, %again, %w)
    %dup = Mul(%dx, %s)
    %ds = Mul(%dx, %up)
    %da = ai.ortmodule::SigmoidGrad(%ds, %s)
    %dz = ai.ortmodule::LinearGrad(%da, _, %v))");
  ASSERT_EQ(run(*g, {"s", "again", "dx", "dup", "ds", "da", "dz"}), 1u);
  EXPECT_EQ(fuse(*g).nodes, 5u);
}

TEST(LateWeights, WhatForwardKeptStaysAsItIs) {
  auto g = resolved(R"(graph g(dy: float[4, 8], w: float[8, 16], a: float[4, 16], v: float[16, 6]) -> (dw, dz)
    %kept = Gelu(%a)
    %dx, %dw = ai.ortmodule::LinearGrad(%dy, %kept, %w)
    %da = ai.ortmodule::GeluGrad(%dx, %a)
    %dz = ai.ortmodule::LinearGrad(%da, _, %v))");
  EXPECT_EQ(run(*g, {"dx", "da", "dz"}), 0u);
}

TEST(LateWeights, AGradientThatIsReadDoesNotWait) {
  auto g = resolved(R"(graph g(dy: float[4, 8], w: float[8, 16], a: float[4, 16], v: float[16, 6]) -> (sum, dz)
    %again = Gelu(%a)
    %dx, %dw = ai.ortmodule::LinearGrad(%dy, %again, %w)
    %sum = Add(%dw, %w)
    %da = ai.ortmodule::GeluGrad(%dx, %a)
    %dz = ai.ortmodule::LinearGrad(%da, _, %v))");
  EXPECT_EQ(run(*g, {"again", "dx", "sum", "da", "dz"}), 0u);
}

}  // namespace
}  // namespace ortmodule
