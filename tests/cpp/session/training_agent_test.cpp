// The halves of a graph as a C++ program runs them: gradients, states in any order, the cache of what weights decide.
#include "ortmodule/training_agent.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include "onnx/export.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;
using training::OrtValueCache;
using training::PartialGraphExecutionState;

// y = x w^2
constexpr const char* kModel =
    "graph g(x: float[batch, 3], w: float[3, 4]) -> (y)\n %s = Mul(%w, %w)\n %y = MatMul(%x, %s)";

GraphFunction function() {
  return GraphFunction::parse(export_model(*resolved(kModel)), {.trainable = {"w", "x"}, .fusion = false});
}

TEST(PublicTrainingAgent, GivesGradientsInTheOrderInWhichTheyWereAskedFor) {
  const training::TrainingAgent agent(function());
  std::vector<at::Tensor> xs{at::randn({5, 3}), at::randn({2, 3})};
  const at::Tensor w = at::randn({3, 4});
  std::vector<PartialGraphExecutionState> states(2);
  std::vector<at::Tensor> ys;
  for (size_t i = 0; i < 2; ++i) ys.push_back(agent.run_forward({xs[i], w}, states[i])[0]);
  for (size_t i : {1, 0}) {
    EXPECT_TRUE(at::allclose(ys[i], at::matmul(xs[i], w * w)));
    EXPECT_TRUE(states[i].is_pending());
    const at::Tensor dy = at::ones_like(ys[i]);
    const std::vector<at::Tensor> found = agent.run_backward({dy}, states[i]);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_TRUE(at::allclose(found[0], 2 * w * at::matmul(xs[i].t(), dy)));
    EXPECT_TRUE(at::allclose(found[1], at::matmul(dy, (w * w).t())));
    EXPECT_FALSE(states[i].is_pending());
    expect_error(ErrorCode::kRuntime, "no forward", [&] { agent.run_backward({dy}, states[i]); });
  }
}

TEST(PublicTrainingAgent, TakesWhatWeightsDecideFromACache) {
  const training::TrainingAgent agent(function(), {"w"});
  const at::Tensor x = at::randn({5, 3}), w = at::randn({3, 4});
  PartialGraphExecutionState state;
  OrtValueCache cache;
  const at::Tensor y = agent.run_forward({x, w}, state, &cache)[0];
  ASSERT_EQ(cache.count("s"), 1u);
  EXPECT_TRUE(at::equal(cache["s"], w * w));
  cache["s"] = cache["s"] * 2;
  EXPECT_TRUE(at::allclose(agent.run_forward({x, w}, state, &cache)[0], 2 * y)) << "it is not computed again";
  EXPECT_TRUE(agent.run_backward({at::ones_like(y)}, state)[0].defined());
  cache.clear();
  EXPECT_TRUE(at::equal(agent.run_forward({x, w}, state, &cache)[0], y));
}

}  // namespace
}  // namespace ortmodule
