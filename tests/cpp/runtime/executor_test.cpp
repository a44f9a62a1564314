// Running plans: results, when outputs leave, what wrong inputs say, and several outstanding runs of a training graph.
#include "runtime/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>

#include "compile/compile.h"
#include "onnx/export.h"
#include "runtime/input_binding.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

// A graph's forward with its frame, ready to run.
struct Program {
  explicit Program(std::string_view text) : graph(resolved(text)) {
    PlanRequest request;
    request.name = "forward";
    request.outputs = graph->outputs();
    ExecutionPlan plan = make_plan(*graph, request, slots);
    executor = std::make_unique<Executor>(std::move(plan), c10::kCPU);
  }

  Frame frame(const std::vector<at::Tensor>& inputs) const {
    Frame out;
    InputBinding(graph->inputs()).bind(inputs, out.symbols);
    out.slots.resize(slots.size());
    executor->load_constants(out);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int slot = slots.find(graph->inputs()[i]->name());
      if (slot >= 0) out.slots[slot] = inputs[i];
    }
    return out;
  }

  const at::Tensor& value(const Frame& frame, const std::string& name) const { return frame.slots[slots.find(name)]; }

  std::unique_ptr<Graph> graph;
  SlotTable slots;
  std::unique_ptr<Executor> executor;
};

TEST(Executor, RunsASmallGraphAtAnySize) {
  const Program program(
      "graph g(x: float[batch, 3], w: float[3]) -> (y)\n const %two: float[] = [2]\n"
      " %a = Mul(%x, %w)\n %b = Mul(%a, %two)\n %y = Tanh(%b)");
  for (int64_t batch : {2, 5}) {
    const at::Tensor x = at::arange(batch * 3, at::kFloat).reshape({batch, 3}), w = at::full({3}, 0.1f);
    Frame frame = program.frame({x, w});
    program.executor->run(frame);
    EXPECT_TRUE(at::allclose(program.value(frame, "y"), at::tanh(at::mul(at::mul(x, w), 2))));
    EXPECT_FALSE(program.value(frame, "a").defined()) << "released after its last use";
  }
}

TEST(Executor, DoesNotWriteIntoItsInputs) {
  const Program program("graph g(x: float[3]) -> (y)\n %y = Relu(%x)");
  const at::Tensor x = at::full({3}, -1.0f);
  Frame frame = program.frame({x});
  program.executor->run(frame);
  EXPECT_TRUE(x.equal(at::full({3}, -1.0f)));
}

TEST(Executor, HandsEachOutputToTheSinkAsSoonAsNothingReadsIt) {
  const Program program(
      "graph g(x: float[4]) -> (y, early, again)\n %early = Neg(%x)\n %b = Exp(%x)\n"
      " %again = Tanh(%b)\n %y = Mul(%again, %b)");
  Frame frame = program.frame({at::ones({4})});
  std::vector<std::string> events;
  const StepObserver observer = [&](const Step& step, const Frame&) { events.push_back(step.node->op()); };
  const OutputSink sink = [&](size_t index, at::Tensor value) {
    EXPECT_TRUE(value.defined());
    events.push_back("output " + std::to_string(index));
  };
  program.executor->run(frame, &sink, &observer);
  const std::vector<std::string> wanted = {"Neg", "output 1", "Exp", "Tanh", "Mul", "output 0", "output 2"};
  EXPECT_EQ(events, wanted);
  for (const at::Tensor& slot : {program.value(frame, "early"), program.value(frame, "y")})
    EXPECT_FALSE(slot.defined()) << "an output that left is no longer held";
}

TEST(Executor, HandsAValueThatIsTwoOutputsToBoth) {
  const Program program("graph g(x: float[4]) -> (y, y)\n %y = Neg(%x)");
  Frame frame = program.frame({at::ones({4})});
  std::vector<at::Tensor> got(2);
  const OutputSink sink = [&](size_t index, at::Tensor value) { got[index] = std::move(value); };
  program.executor->run(frame, &sink);
  for (const at::Tensor& value : got) EXPECT_TRUE(value.equal(at::full({4}, -1.0f)));
}

TEST(Executor, NamesTheNodeThatFailed) {
  const Program program("graph g(x: float[a, b], w: float[c, d]) -> (y)\n %y = MatMul(%x, %w) @{name=\"head\"}");
  Frame frame = program.frame({at::ones({2, 3}), at::ones({4, 5})});
  expect_error(ErrorCode::kRuntime, "[MatMul]", [&] { program.executor->run(frame); });
  Frame second = program.frame({at::ones({2, 3}), at::ones({4, 5})});
  expect_error(ErrorCode::kRuntime, "'head'", [&] { program.executor->run(second); });
}

TEST(InputBinding, RefusesWhatDoesNotFitAndNamesTheInput) {
  auto g = resolved("graph g(x: float[batch, 3], m: float[batch], i: int64[2]) -> (y)\n %y = Relu(%x)");
  const InputBinding binding(g->inputs());
  const at::Tensor x = at::ones({4, 3}), m = at::ones({4}), i = at::ones({2}, at::kLong);
  const auto bind = [&](std::vector<at::Tensor> values) {
    return [&binding, values] {
      SymbolTable symbols;
      binding.bind(values, symbols);
    };
  };
  bind({x, m, i})();
  const auto code = ErrorCode::kInvalidArgument;
  expect_error(code, "expected 3 inputs, got 2", bind({x, m}));
  expect_error(code, "input 'm' is missing", bind({x, at::Tensor(), i}));
  expect_error(code, "input 'x' should be of type Float, got Double", bind({at::ones({4, 3}, at::kDouble), m, i}));
  expect_error(code, "input 'x' should have shape [batch, 3], got [4, 2]", bind({at::ones({4, 2}), m, i}));
  expect_error(code, "got [12]", bind({at::ones({12}), m, i}));
  expect_error(code, "batch is 4 in another input", bind({x, at::ones({5}), i}));
}

TEST(InputBinding, BindsSymbolsFromShapes) {
  auto g = resolved("graph g(x: float[batch, seq], z: float[2*seq]) -> (y)\n %y = Relu(%x)");
  const InputBinding binding(g->inputs());
  SymbolTable symbols;
  binding.bind({at::ones({4, 7}), at::ones({14})}, symbols);
  EXPECT_EQ(symbols.at("batch"), 4);
  EXPECT_EQ(symbols.at("seq"), 7);
  expect_error(ErrorCode::kInvalidArgument, "'z'", [&] {
    SymbolTable fresh;
    binding.bind({at::ones({4, 7}), at::ones({15})}, fresh);
  });
}

// y = tanh(x w), with the gradients of both.
class TrainingAgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto g = resolved("graph g(x: float[n], w: float[n]) -> (y)\n %p = Mul(%x, %w)\n %y = Tanh(%p)");
    const std::string model = export_model(*g);
    CompileOptions options;
    options.trainable = {"x", "w"};
    compiled_ = compile(model, options);
  }

  using State = std::shared_ptr<TrainingAgent::RunState>;

  at::Tensor forward(const at::Tensor& x, const at::Tensor& w, State& state) {
    return compiled_.agent->forward({x, w}, &state).at(0);
  }

  std::vector<at::Tensor> backward(const State& state, const at::Tensor& dy, bool keep = false) {
    std::vector<at::Tensor> out(2);
    compiled_.agent->backward(*state, {dy}, keep, [&](size_t i, at::Tensor value) { out.at(i) = std::move(value); });
    return out;
  }

  static std::vector<at::Tensor> expected(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy) {
    const at::Tensor y = at::tanh(at::mul(x, w)), dp = dy * (1 - y * y);
    return {dp * w, dp * x};
  }

  static void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted) {
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(got[i], wanted[i], 1e-5, 1e-6)) << i;
  }

  CompiledModel compiled_;
};

TEST_F(TrainingAgentTest, SeveralForwardsMayBeOutstanding) {
  const at::Tensor w = at::full({3}, 0.3f), v = at::full({5}, -0.2f);
  const at::Tensor x = at::full({3}, 0.5f), z = at::full({5}, 2.0f);
  const at::Tensor dx = at::full({3}, 1.0f), dz = at::full({5}, 3.0f);
  State first, second;
  forward(x, w, first);
  forward(z, v, second);
  expect_close(backward(first, dx), expected(x, w, dx));
  expect_close(backward(second, dz), expected(z, v, dz));
}

TEST_F(TrainingAgentTest, OutstandingRunsMayGoBackwardInAnyOrder) {
  const at::Tensor w = at::full({3}, 0.3f), dy = at::ones({3});
  const at::Tensor x = at::full({3}, 0.5f), z = at::full({3}, 2.0f);
  State first, second, dropped;
  forward(x, w, first);
  forward(z, w, second);
  forward(z, w, dropped);
  dropped.reset();
  expect_close(backward(second, dy), expected(z, w, dy));
  expect_close(backward(first, dy), expected(x, w, dy));
}

TEST_F(TrainingAgentTest, RefusesASecondBackwardUnlessTheGraphIsKept) {
  const at::Tensor x = at::full({3}, 0.5f), w = at::full({3}, 0.3f), dy = at::ones({3});
  State state;
  forward(x, w, state);
  expect_close(backward(state, dy, true), expected(x, w, dy));
  expect_close(backward(state, dy), expected(x, w, dy));
  expect_error(ErrorCode::kRuntime, "second time", [&] { backward(state, dy); });
}

TEST_F(TrainingAgentTest, FreesSavedValuesWithTheBackward) {
  const at::Tensor w = at::full({3}, 0.3f);
  State state;
  at::Tensor x = at::full({3}, 0.5f);
  forward(x, w, state);
  EXPECT_GT(x.use_count(), 1u) << "backward needs x";
  backward(state, at::ones({3}));
  EXPECT_EQ(x.use_count(), 1u);
}

TEST_F(TrainingAgentTest, RefusesAnInputThatChangedInPlace) {
  const at::Tensor x = at::full({3}, 0.5f), w = at::full({3}, 0.3f);
  State state;
  forward(x, w, state);
  w.add_(1);
  expect_error(ErrorCode::kRuntime, "modified by an inplace operation", [&] { backward(state, at::ones({3})); });
}

TEST_F(TrainingAgentTest, NoGradientInMeansNoGradientOut) {
  State state;
  forward(at::full({3}, 0.5f), at::full({3}, 0.3f), state);
  for (const at::Tensor& gradient : backward(state, at::Tensor())) EXPECT_FALSE(gradient.defined());
  expect_error(ErrorCode::kRuntime, "second time", [&] { backward(state, at::ones({3})); });
}

TEST_F(TrainingAgentTest, ForwardWithoutStateKeepsNothing) {
  at::Tensor x = at::full({3}, 0.5f);
  const at::Tensor w = at::full({3}, 0.3f);
  const at::Tensor y = compiled_.agent->forward({x, w}, nullptr).at(0);
  EXPECT_TRUE(at::allclose(y, at::tanh(at::mul(x, w))));
  EXPECT_EQ(x.use_count(), 1u);
}

TEST(BackwardVariants, AnOutputWithoutGradientCostsNothingAndChangesNothing) {
  auto g = resolved("graph g(x: float[n]) -> (a, b)\n %a = Exp(%x)\n %b = Tanh(%x)");
  const std::string model = export_model(*g);
  CompileOptions options;
  options.trainable = {"x"};
  const CompiledModel compiled = compile(model, options);
  const at::Tensor x = at::full({3}, 0.5f), dy = at::ones({3});
  const std::vector<std::vector<at::Tensor>> cases = {{dy, dy}, {dy, at::Tensor()}, {at::Tensor(), dy}};
  for (const auto& dys : cases) {
    std::shared_ptr<TrainingAgent::RunState> state;
    const auto outputs = compiled.agent->forward({x}, &state);
    at::Tensor got;
    compiled.agent->backward(*state, dys, false, [&](size_t, at::Tensor value) { got = std::move(value); });
    at::Tensor wanted = at::full({3}, 0.0f);
    if (dys[0].defined()) wanted = wanted + outputs[0];
    if (dys[1].defined()) wanted = wanted + (1 - outputs[1] * outputs[1]);
    EXPECT_TRUE(at::allclose(got, wanted, 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace ortmodule
