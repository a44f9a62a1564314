// InferenceSession as a C++ program has it: what is fetched, options, bindings, and runs that are ended.
#include "ortmodule/inference_session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

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
