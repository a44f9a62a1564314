// A portable graph holds standard operators only.
#include "transforms/lower_portable.h"

#include "onnx/export.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::expect_error;
using testing::resolved;

TEST(LowerPortable, ReplacesOwnOperatorsAndKeepsNames) {
  auto g = resolved(R"(graph g(x: float[batch, 4], w: float[8, 4]) -> (y)
    opset "" 23
    opset "ai.ortmodule" 1
    %h = ai.ortmodule::Linear(%x, %w)
    %y = ai.ortmodule::Silu(%h))");
  const auto portable = lower_portable(*g);
  verify_edges(*portable);
  EXPECT_EQ(portable->outputs()[0]->name(), "y");
  EXPECT_EQ(portable->find("y")->type().text(), "float[batch, 8]");
  EXPECT_NO_THROW(export_model(*portable, {.portable = true}));
  EXPECT_EQ(count(*g, "ai.ortmodule::Silu"), 1u);  // the graph itself is untouched
}

TEST(LowerPortable, WritesSizesAsArithmeticOnInputShapes) {
  auto g = resolved(R"(graph g(x: float[batch, seq, 4]) -> (y)
    opset "" 23
    %n = ai.ortmodule::Sizes() {exprs=["batch*seq", "4"]}
    %y = Reshape(%x, %n) {allowzero=1})");
  const auto portable = lower_portable(*g);
  EXPECT_EQ(count(*portable, "ai.ortmodule::Sizes"), 0u);
  EXPECT_EQ(count(*portable, "Shape"), 1u);
  EXPECT_EQ(count(*portable, "Mul"), 1u);
  EXPECT_NO_THROW(export_model(*portable, {.portable = true}));
}

TEST(LowerPortable, NamesWhatHasNoStandardForm) {
  auto aten = parse_text(
      "graph g(x: float[2]) -> (y)\n %y = org.pytorch.aten::ATen(%x) {operator=\"aten::flip\"} @{name=\"f\"}");
  expect_error(ErrorCode::kUnsupported, "org.pytorch.aten::ATen node 'f'", [&] { lower_portable(*aten); });
  auto unbound = resolved(R"(graph g(x: float[2]) -> (y)
    %n = ai.ortmodule::Sizes() {exprs=["elsewhere"]} @{name="n1"}
    %y = Expand(%x, %n))");
  expect_error(ErrorCode::kUnsupported, "'n1'", [&] { lower_portable(*unbound); });
}

}  // namespace
}  // namespace ortmodule
