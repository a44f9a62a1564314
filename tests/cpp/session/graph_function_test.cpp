// The public class of a C++ program: from bytes, from a file with its tensors beside it, trained, by name, refused.
#include "ortmodule/graph_function.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include <filesystem>
#include <fstream>

#include "onnx/export.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

constexpr const char* kModel =
    "graph g(x: float[batch, 3], w: float[3, 2]) -> (loss, y)\n"
    " %y = MatMul(%x, %w)\n %s = Mul(%y, %y)\n %loss = ReduceSum(%s) {keepdims=0}";

std::string model() { return export_model(*resolved(kModel)); }

TEST(GraphFunction, ShowsWhatItTakesAndMakes) {
  const auto f = GraphFunction::parse(model());
  ASSERT_EQ(f.inputs().size(), 2u);
  EXPECT_EQ(f.inputs()[0].name, "x");
  EXPECT_EQ(f.inputs()[0].dtype, "float");
  EXPECT_EQ(f.inputs()[0].shape, (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(f.outputs()[1].name, "y");
  EXPECT_NE(f.plan().find("MatMul"), std::string::npos) << f.plan();
}

TEST(GraphFunction, TrainsThroughAutograd) {
  const auto f = GraphFunction::parse(model(), {.trainable = {"w"}});
  const at::Tensor w = at::randn({3, 2}).requires_grad_(true);
  for (int64_t batch : {4, 1, 7}) {
    const at::Tensor x = at::randn({batch, 3});
    w.mutable_grad().reset();
    f({x, w})[0].backward();
    EXPECT_TRUE(at::allclose(w.grad(), at::matmul(x.t(), 2 * at::matmul(x, w)).detach(), 1e-4, 1e-5));
  }
}

TEST(GraphFunction, TakesAndGivesValuesByName) {
  const auto f = GraphFunction::parse(model());
  const at::Tensor x = at::randn({4, 3}), w = at::randn({3, 2});
  const std::map<std::string, at::Tensor> out = f.run({{"w", w}, {"x", x}});
  EXPECT_TRUE(at::allclose(out.at("y"), at::matmul(x, w)));
  using Named = std::map<std::string, at::Tensor>;
  expect_error(ErrorCode::kInvalidArgument, "input 'w' is not given", [&] { f.run(Named{{"x", x}}); });
  expect_error(ErrorCode::kInvalidArgument, "no input 'v'", [&] { f.run(Named{{"x", x}, {"w", w}, {"v", w}}); });
}

TEST(GraphFunction, ReadsTensorsBesideTheFile) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "ortmodule_graph_function";
  std::filesystem::create_directories(folder);
  const auto graph =
      resolved("graph g(x: float[n]) -> (y)\n const %c: float[4] = [1, 2, 3, 4]\n %s = Add(%x, %c)\n %y = Relu(%s)");
  const std::string bytes = export_model(
      *graph, {.external_data_dir = folder.string(), .external_data_file = "weights.bin", .external_threshold = 1});
  std::ofstream(folder / "model.onnx", std::ios::binary) << bytes;
  const auto f = GraphFunction::load((folder / "model.onnx").string());
  EXPECT_EQ(f({at::randn({4}).fill_(1.0)})[0].sum().item<float>(), 14);
  std::filesystem::remove_all(folder);
}

TEST(GraphFunction, RefusesWhatItCannotUse) {
  expect_error(ErrorCode::kInvalidArgument, "'/nowhere/model.onnx' cannot be read",
               [] { GraphFunction::load("/nowhere/model.onnx"); });
  expect_error(ErrorCode::kInvalidArgument, "cannot be read", [] { GraphFunction::load("/"); });
  expect_error(ErrorCode::kParse, "", [] { GraphFunction::parse("no model"); });
  expect_error(ErrorCode::kInvalidArgument, "'abacus'", [] { GraphFunction::parse(model(), {.device = "abacus"}); });
  expect_error(ErrorCode::kInvalidArgument, "'v'", [] { GraphFunction::parse(model(), {.trainable = {"v"}}); });
  expect_error(ErrorCode::kInvalidArgument, "'x'",
               [] { GraphFunction::parse(model())({at::randn({4, 5}), at::randn({3, 2})}); });
}

}  // namespace
}  // namespace ortmodule
