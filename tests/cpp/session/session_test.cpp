// Sessions without Python: a whole training step with a buffer that is written, dropout, two outstanding forwards, and
// threads on a session that has never run.
#include "session/session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <thread>

#include "onnx/export.h"
#include "session/report.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

// h = x w^T, y = dropout(h); `calls` counts.
constexpr const char* kModel =
    "graph g(x: float[batch, 3], w: float[4, 3], calls: float[]) -> (loss, y, more)\n"
    " const %one: float[] = [1]\n const %half: float[] = [0.5]\n const %yes: bool[] = [1]\n"
    " %t = Transpose(%w) {perm=[1, 0]}\n %h = MatMul(%x, %t)\n %y, %_m = Dropout(%h, %half, %yes)\n"
    " %s = Mul(%y, %y)\n %loss = ReduceSum(%s) {keepdims=0}\n %more = Add(%calls, %one)";

std::shared_ptr<Session> make(bool training, std::vector<std::pair<size_t, size_t>> mutations = {{2, 2}}) {
  SessionSettings options;
  options.training = training;
  if (training) options.trainable = {"w"};
  options.weights = {"w"};
  options.mutations = std::move(mutations);
  return std::make_shared<Session>(export_model(*resolved(kModel)), std::move(options));
}

// The dropout's factors, as what came out tells them.
at::Tensor kept(const at::Tensor& y, const at::Tensor& h) { return (y / h).detach(); }

TEST(Session, TrainsWithABufferDropoutAndTwoOutstandingForwards) {
  const auto session = make(true);
  const at::Tensor w = at::randn({4, 3}).requires_grad_(true), calls = at::zeros({});
  std::vector<at::Tensor> inputs{at::randn({5, 3}), at::randn({2, 3})}, losses, wanted;
  for (const at::Tensor& x : inputs) {
    const std::vector<at::Tensor> out = session->run({x, w, calls});
    ASSERT_EQ(out.size(), 2u) << "what is written back is no result";
    const at::Tensor h = at::matmul(x, w.t()).detach(), factors = kept(out[1], h);
    EXPECT_TRUE(at::allclose(out[0].detach(), (h * factors).square().sum()));
    EXPECT_TRUE(((factors == 0) | (factors - 2).abs().lt(1e-4)).all().item<bool>()) << factors;
    losses.push_back(out[0]);
    wanted.push_back(at::matmul((2 * h * factors * factors).t(), x));
  }
  EXPECT_EQ(calls.item<float>(), 2);
  // The second one's backward first: each has its own mask and its own sizes.
  torch::autograd::backward({losses[1]}, {});
  EXPECT_TRUE(at::allclose(w.grad(), wanted[1]));
  torch::autograd::backward({losses[0]}, {});
  EXPECT_TRUE(at::allclose(w.grad(), wanted[0] + wanted[1]));
  expect_error(ErrorCode::kRuntime, "a second time", [&] { torch::autograd::backward({losses[0]}, {}); });

  const SessionStatistics found = statistics_of(*session);
  EXPECT_EQ(found.gradients, 1u);
  EXPECT_GT(found.saved_bytes, 0);
  EXPECT_FALSE(memory_at_peak(*session).empty());
}

TEST(Session, InfersWithoutHistory) {
  const auto session = make(false);
  const at::Tensor w = at::randn({4, 3}).requires_grad_(true);
  const at::NoGradGuard none;
  EXPECT_FALSE(session->run({at::randn({5, 3}), w, at::zeros({})})[1].requires_grad());
}

// sum = a + b; bad = row 7 of a, which has none.
std::shared_ptr<Session> with_a_failing_output() {
  SessionSettings options;
  options.training = false;
  return std::make_shared<Session>(
      export_model(*resolved("graph g(a: float[n, 3], b: float[n, 3]) -> (sum, bad)\n"
                             " const %at: int64[] = [7]\n %sum = Add(%a, %b)\n %bad = Gather(%a, %at)")),
      std::move(options));
}

TEST(Session, ComputesWhatIsFetched) {
  const auto session = with_a_failing_output();
  const at::Tensor a = at::randn({2, 3}), b = at::randn({2, 3});
  for (int run = 0; run < 3; ++run) {
    const std::vector<at::Tensor> out = session->infer({a, b}, {true, false});
    ASSERT_EQ(out.size(), 1u);
    EXPECT_TRUE(out[0].equal(a + b));
  }
  EXPECT_THROW(session->infer({a, b}, {false, true}), Error);
  EXPECT_THROW(session->infer({a, b}), Error);
  const at::Tensor tall = at::randn({8, 3});
  EXPECT_TRUE(session->infer({tall, tall}, {false, true})[0].equal(tall[7]));
}

TEST(Session, EndsARunThatIsToEnd) {
  const auto session = with_a_failing_output();
  const at::Tensor a = at::randn({8, 3});
  RunStop stop;
  EXPECT_EQ(session->infer({a, a}, {}, &stop).size(), 2u);
  stop.ask();
  expect_error(ErrorCode::kTerminated, "terminate", [&] { session->infer({a, a}, {}, &stop); });
  EXPECT_EQ(session->infer({a, a}).size(), 2u) << "another run is not concerned";
  stop.take_back();
  EXPECT_EQ(session->infer({a, a}, {}, &stop).size(), 2u);
}

TEST(Session, RefusesMutationsThatAreNone) {
  expect_error(ErrorCode::kInvalidArgument, "mutation (7, 2) is out of range", [] { make(true, {{7, 2}}); });
}

TEST(Session, IsSharedByThreadsFromItsFirstRunOn) {
  for (int round = 0; round < 20; ++round) {
    const auto session = make(true, {});
    const at::Tensor x = at::randn({5, 3}), zero = at::zeros({});
    std::vector<std::thread> threads;
    std::vector<char> right(8, false);
    for (size_t i = 0; i < right.size(); ++i)
      threads.emplace_back([&, i] {
        const at::Tensor w = at::full({4, 3}, 0.5f).requires_grad_(true);
        const std::vector<at::Tensor> out = session->run({x, w, zero});
        torch::autograd::backward({out[0]}, {});
        const at::Tensor h = at::matmul(x, w.t()).detach(), factors = kept(out[1], h);
        right[i] = at::allclose(w.grad(), at::matmul((2 * h * factors * factors).t(), x));
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::count(right.begin(), right.end(), true), 8);
    EXPECT_GT(statistics_of(*session).peak_forward_bytes, 0);
  }
}

}  // namespace
}  // namespace ortmodule
