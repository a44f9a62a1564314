// InferenceSession as a C++ program has it: what is fetched, options, bindings, and runs that are ended.
#include "ortmodule/inference_session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/inter_op_pool.h"
#include "onnx/export.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

constexpr const char* kModel =
    "graph g(x: float[batch, 3], w: float[3, 2]) -> (scores, positive)\n"
    " %scores = MatMul(%x, %w)\n %positive = Relu(%scores)";

std::string model() { return export_model(*resolved(kModel)); }

TEST(InferenceSession, RunsByName) {
  const InferenceSession session = InferenceSession::parse(model());
  const at::Tensor x = at::randn({4, 3}), w = at::randn({3, 2}), scores = at::matmul(x, w);
  const std::vector<at::Tensor> all = session.run({{"w", w}, {"x", x}});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].allclose(scores));
  const std::vector<at::Tensor> some = session.run({{"x", x}, {"w", w}}, {"positive", "scores", "positive"});
  ASSERT_EQ(some.size(), 3u);
  EXPECT_TRUE(some[0].equal(some[2]) && some[0].allclose(at::relu(scores)) && some[1].allclose(scores));
  EXPECT_EQ(session.inputs()[0].name, "x");
  EXPECT_EQ(session.inputs()[0].shape, (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(session.outputs()[1].name, "positive");
  expect_error(ErrorCode::kInvalidArgument, "no input 'z'; it has 'x', 'w'", [&] { session.run({{"z", x}}); });
  expect_error(ErrorCode::kInvalidArgument, "input 'w' is not given", [&] { session.run({{"x", x}}); });
  expect_error(ErrorCode::kInvalidArgument, "no output 'y'", [&] { session.run({{"x", x}, {"w", w}}, {"y"}); });
}

TEST(InferenceSession, TakesOptions) {
  const std::string bytes = model();
  const at::Tensor x = at::randn({4, 3}), w = at::randn({3, 2});
  SessionOptions options;
  options.execution_order = "memory_efficient";
  options.graph_optimization_level = GraphOptimizationLevel::kDisableAll;
  options.enable_mem_pattern = options.enable_mem_reuse = false;
  options.intra_op_num_threads = 1;
  options.free_dimensions = {{"batch", 4}};
  const InferenceSession session = InferenceSession::parse(bytes, options);
  EXPECT_EQ(session.inputs()[0].shape, (std::vector<int64_t>{4, 3}));
  EXPECT_TRUE(session.run({{"x", x}, {"w", w}})[0].allclose(at::matmul(x, w)));
  EXPECT_EQ(session.plan().find("release"), std::string::npos);
  options.execution_order = "fastest";
  expect_error(ErrorCode::kInvalidArgument, "'fastest'", [&] { InferenceSession::parse(bytes, options); });
  expect_error(ErrorCode::kInvalidArgument, "cannot be read", [] { InferenceSession("/nonexistent/model.onnx"); });
}

constexpr const char* kTowers =
    "graph g(x: float[128, 128]) -> (y)\n"
    " %a0 = MatMul(%x, %x)\n %a1 = Tanh(%a0)\n %a2 = MatMul(%a1, %x)\n"
    " %b0 = Exp(%x)\n %b1 = MatMul(%b0, %x)\n %b2 = Tanh(%b1)\n"
    " %c0 = MatMul(%b0, %b0)\n %c1 = Tanh(%c0)\n"
    " %s = Add(%a2, %b2)\n %y = Add(%s, %c1)";

TEST(InferenceSession, RunsNodesSideBySide) {
  const std::string bytes = export_model(*resolved(kTowers));
  const at::Tensor x = at::randn({128, 128}) * 0.1;
  SessionOptions options;
  options.intra_op_num_threads = 1;
  const at::Tensor y = InferenceSession::parse(bytes, options).run({{"x", x}})[0];
  options.execution_mode = ExecutionMode::kParallel;
  options.inter_op_num_threads = 3;
  for (const bool own : {true, false})
    for (const bool spin : {true, false}) {
      options.use_per_session_threads = own;
      options.inter_op_allow_spinning = spin;
      const InferenceSession session = InferenceSession::parse(bytes, options);
      for (int run = 0; run < 100; ++run) ASSERT_TRUE(session.run({{"x", x}})[0].equal(y));
    }
  options.inter_op_num_threads = -1;
  expect_error(ErrorCode::kInvalidArgument, "numbers of threads are from 0 on, got -1",
               [&] { InferenceSession::parse(bytes, options); });
  expect_error(ErrorCode::kInvalidArgument, "got 0", [] { set_global_inter_op_threads(0); });
}

// A thread of a pool that waited for others could wait for itself.
TEST(InferenceSession, RunsOneByOneInsideAnothersNode) {
  SessionOptions options;
  options.execution_mode = ExecutionMode::kParallel;
  options.inter_op_num_threads = 2;
  const InferenceSession session = InferenceSession::parse(export_model(*resolved(kTowers)), options);
  const at::Tensor x = at::randn({128, 128}) * 0.1, y = session.run({{"x", x}})[0];
  std::atomic<int> equal{0};
  {
    InterOpPool pool(1, true);
    for (int run = 0; run < 4; ++run) pool.schedule([&] { equal += session.run({{"x", x}})[0].allclose(y); });
  }
  EXPECT_EQ(equal, 4);
}

TEST(InferenceSession, TakesOtherValuesForInitializersThatAreInputs) {
  // Messages that stand one behind the other are one: a graph's input `w`, a float tensor, behind the model.
  const std::string input = "\x3a\x0b\x5a\x09\x0a\x01w\x12\x04\x0a\x02\x08\x01";
  const std::string bytes =
      export_model(*resolved("graph g(x: float[2]) -> (y)\n const %w: float[2] = [1, 2]\n %y = Add(%x, %w)")) + input;
  const InferenceSession session = InferenceSession::parse(bytes);
  EXPECT_EQ(session.inputs().size(), 1u);
  const at::Tensor x = at::zeros({2});
  const auto sum = [&](const InferenceSession::Feeds& feeds) { return session.run(feeds)[0].sum().item<float>(); };
  EXPECT_EQ(sum({{"x", x}}), 3);
  EXPECT_EQ(sum({{"x", x}, {"w", at::ones({2})}}), 2);
  EXPECT_EQ(sum({{"w", at::full({2}, 5.0)}, {"x", x}}), 10);
  EXPECT_EQ(sum({{"x", x}}), 3);
  expect_error(ErrorCode::kInvalidArgument, "no input 'v'", [&] { sum({{"x", x}, {"v", x}}); });
}

TEST(InferenceSession, ReadsAndWritesWhatIsBound) {
  const InferenceSession session = InferenceSession::parse(model());
  const at::Tensor x = at::ones({4, 3}), w = at::ones({3, 2}), buffer = at::zeros({4, 2});
  IOBinding binding(session);
  expect_error(ErrorCode::kInvalidArgument, "no output is bound", [&] { session.run(binding); });
  binding.bind_output("positive", buffer);
  binding.bind_output("scores");
  binding.bind_input("x", x);
  expect_error(ErrorCode::kInvalidArgument, "'w' is not bound", [&] { session.run(binding); });
  binding.bind_input("w", w);
  for (float factor : {1.0f, 2.0f, 3.0f}) {
    x.fill_(factor);
    session.run(binding);
    EXPECT_TRUE(buffer.equal(at::full({4, 2}, 3 * factor)));
    EXPECT_TRUE(binding.outputs()[0].is_same(buffer));
    EXPECT_TRUE(binding.outputs()[1].equal(buffer));
  }
  binding.bind_output("positive", at::zeros({3, 2}));
  expect_error(ErrorCode::kInvalidArgument, "the buffer of the output 'positive'", [&] { session.run(binding); });
  const InferenceSession other = InferenceSession::parse(model());
  expect_error(ErrorCode::kInvalidArgument, "another session's", [&] { other.run(binding); });
}

TEST(InferenceSession, EndsRunsFromOutside) {
  const InferenceSession session = InferenceSession::parse(model());
  const InferenceSession::Feeds feeds{{"x", at::ones({4, 3})}, {"w", at::ones({3, 2})}};
  const RunOptions options, copy = options;
  std::thread([&] { copy.terminate(); }).join();
  expect_error(ErrorCode::kTerminated, "terminate", [&] { session.run(feeds, {}, &options); });
  EXPECT_EQ(session.run(feeds).size(), 2u);
  options.go_on();
  EXPECT_EQ(session.run(feeds, {}, &copy).size(), 2u);
}

TEST(InferenceSession, IsSharedByThreads) {
  const InferenceSession session = InferenceSession::parse(model());
  std::vector<std::thread> threads;
  std::vector<char> right(8, false);
  for (size_t i = 0; i < right.size(); ++i)
    threads.emplace_back([&, i] {
      const at::Tensor x = at::randn({static_cast<int64_t>(i) + 1, 3}), w = at::randn({3, 2});
      const at::Tensor wanted = session.run({{"x", x}, {"w", w}}, {"scores"})[0];
      bool same = true;
      for (int run = 0; run < 1000; ++run) same = same && session.run({{"x", x}, {"w", w}})[0].equal(wanted);
      right[i] = same;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(right.begin(), right.end(), true), 8);
}

TEST(InferenceSession, HoldsGivenTensorsAndWritesItsGraph) {
  char name[] = "/tmp/ortmodule_test_XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  Graph graph;
  graph.opsets()[""] = 20;
  NodeArg* const x = graph.add_input("x", {DType::kFloat, Shape{Dim::symbol("n"), 64}});
  NodeArg* const w = graph.add_initializer("w", {DType::kFloat, {64, 64}, std::string(64 * 64 * 4, '\0')});
  graph.add_output(graph.add_node("", "MatMul", {x, w}, {"y"})->output(0));
  const at::Tensor given = at::ones({64, 64}), fed = at::randn({2, 64});
  SessionOptions options;
  options.initializers = {{"w", given}};
  options.optimized_model_path = (folder / "optimized.onnx").string();
  {
    const InferenceSession session = InferenceSession::parse(export_model(graph), options);
    EXPECT_TRUE(session.run({{"x", fed}})[0].allclose(at::matmul(fed, given)));
    EXPECT_GT(given.use_count(), 2u) << "the session holds it";
  }
  EXPECT_EQ(given.use_count(), 2u) << "here and in the options";
  const InferenceSession written(options.optimized_model_path);
  EXPECT_TRUE(written.run({{"x", fed}})[0].allclose(at::matmul(fed, given)));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ortmodule
