// Export: what is written reads back the same, and own operators stay recognisable or are refused.
#include "onnx/export.h"

#include <cstdio>
#include <fstream>

#include "onnx/import.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;
using testing::resolved;

std::unique_ptr<Graph> round_trip(const Graph& g) {
  const std::string bytes = export_model(g);
  return import_model(bytes.data(), bytes.size());
}

TEST(OnnxExport, KeepsPhaseMetadataAndTypes) {
  auto g = resolved(R"(graph g(x: float[batch, 2*seq]) -> (y)
    opset "" 23
    metadata "author" "us"
    %a = Relu(%x) @{"source"="model.py:7"}
    %y = Neg(%a) @{name="back", phase="backward"})");
  const auto copy = round_trip(*g);
  resolve(*copy);
  EXPECT_EQ(to_text(*copy), to_text(*g));
}

TEST(OnnxExport, WritesSavedOutputsInOurDomainAndReadsThemBack) {
  auto g = resolved(R"(graph g(x: float[2, 4], s: float[4]) -> (y)
    opset "" 23
    %y, %mean = LayerNormalization(%x, %s))");
  const std::string plain = export_model(*g);
  EXPECT_EQ(plain.find("ai.ortmodule"), std::string::npos);
  auto saved = resolved(R"(graph g(q: float[1, 2, 4, 8]) -> (y, lse)
    opset "" 23
    const %r: double[] = [0.5]
    %state = ai.ortmodule::RandomState()
    %y, %lse = ai.ortmodule::PhiloxAttention(%q, %q, %q, _, %r, %state))");
  EXPECT_NE(export_model(*saved).find("ai.ortmodule"), std::string::npos);
  resolve(*round_trip(*saved));
}

TEST(OnnxExport, KeepsTheDigitsOfAFloat) {
  for (const char* digits : {"1e-05", "0.3333333333333333", "1.6732632423543772", "-0.013", "-0.0"}) {
    auto g = resolved(str("graph g(x: double[2]) -> (y)\n %y = Elu(%x) {alpha=", digits, "}"));
    const double written = g->nodes()[0]->get_float("alpha", 1);
    EXPECT_EQ(round_trip(*g)->nodes()[0]->get_float("alpha", 1), written) << digits;
  }
}

TEST(OnnxExport, RefusesOwnOperatorsWhenPortable) {
  auto g = parse_text("graph g(x: float[2]) -> (y)\n %y = ai.ortmodule::Silu(%x) @{name=\"act\"}");
  expect_error(ErrorCode::kUnsupported, "ai.ortmodule::Silu node 'act'", [&] { export_model(*g, {.portable = true}); });
}

TEST(OnnxExport, GivesAnOutputThatIsListedTwiceTwoNames) {
  auto g = parse_text("graph g(x: float[2]) -> (y, y)\n opset \"\" 23\n %y: float[2] = Relu(%x)");
  const auto copy = round_trip(*g);
  ASSERT_EQ(copy->outputs().size(), 2u);
  EXPECT_NE(copy->outputs()[0], copy->outputs()[1]);
  EXPECT_EQ(copy->outputs()[1]->producer()->op(), "Identity");
}

TEST(OnnxExport, GivesEveryNodeItsOwnName) {
  auto g = parse_text("graph g(x: float[2]) -> (y)\n %a = Relu(%x) @{name=\"n\"}\n %y = Neg(%a) @{name=\"n\"}");
  const auto copy = round_trip(*g);
  EXPECT_EQ(copy->find("a")->producer()->name(), "n");
  EXPECT_EQ(copy->find("y")->producer()->name(), "n_1");
}

TEST(OnnxExport, ImportsEveryDomainItUses) {
  auto g = parse_text("graph g(x: float[2]) -> (y)\n %a = com.microsoft::Gelu(%x)\n %y = ai.ortmodule::Silu(%a)");
  const auto copy = round_trip(*g);
  EXPECT_EQ(copy->opsets().at(""), 23);
  EXPECT_EQ(copy->opsets().at("com.microsoft"), 1);
  EXPECT_EQ(copy->opsets().at("ai.ortmodule"), 1);
}

TEST(OnnxExport, RefusesOddExternalFileNamesAndLeavesNoTemporaryFile) {
  Graph g;
  for (const char* file : {"../w", "a/b", ".."})
    expect_error(ErrorCode::kInvalidArgument, "plain file name",
                 [&] { export_model(g, {.external_data_dir = "/tmp", .external_data_file = file}); });
  expect_error(ErrorCode::kRuntime, "cannot write",
               [&] { export_model(g, {.external_data_dir = "/nonexistent", .external_data_file = "w"}); });
  expect_error(ErrorCode::kInvalidArgument, "ir_version", [&] { export_model(g, {.ir_version = 99}); });
}

}  // namespace
}  // namespace ortmodule
