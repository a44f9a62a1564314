// The text form prints and parses everything a graph holds.
#include "graph/text.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;

constexpr const char* kEverything =
    R"(graph main(x: float[batch, 4], "odd name": bfloat16[?], n: int64[]) -> (y, "odd name")
  opset "" 23
  opset "my.domain" 1
  metadata "author" "a \"b\"\n"
  const %c: int64[2] = [1, -2]
  const %f: float[2, 2] = [1.5, -0.1, inf, nan]
  const %e: bool[0] = []
  const %h: bfloat16[] = [3.140625]
  const %z: complex64[1] = hex "0000803f00000040"
  %h2: float[batch, 2*batch//3 + 1] = my.domain::Some(%x, _, %"odd name") {a=1, b=1.0, c="s", d=[1, 2], e=[0.5, 1e+30], f=["a", "b"], g=ints[], h=floats[], i=strings[], t=tensor int64[1] [7]}
  _, %m = Two(%h2) @{name="two", phase="backward", "source"="model.py:7"}
  %y = If(%m) {then_branch=graph t(k: float[]) -> (r) {
    %r = Relu(%k)
  }}
)";

TEST(GraphText, PrintsWhatItParsed) {
  const std::string once = to_text(*parse_text(kEverything));
  EXPECT_EQ(to_text(*parse_text(once)), once);
  const auto g = parse_text(once);
  EXPECT_EQ(g->find("m")->output_index(), 1u);
  EXPECT_EQ(g->find("m")->producer()->name(), "two");
  EXPECT_EQ(g->find("m")->producer()->phase(), Phase::kBackward);
  EXPECT_EQ(g->find("m")->producer()->metadata().at("source"), "model.py:7");
  EXPECT_EQ(g->metadata().at("author"), "a \"b\"\n");
  EXPECT_EQ(g->find("h2")->producer()->get_float("b", 0), 1.0);
  EXPECT_EQ(g->find("f")->constant()->to_doubles()[1], static_cast<double>(-0.1f));
  EXPECT_EQ(g->find("h2")->type().text(), "float[batch, " + Dim::parse("2*batch//3 + 1").text() + "]");
}

TEST(GraphText, KeepsFunctions) {
  const char* text = R"(graph g(x: float[2]) -> (y)
  %y = my::F(%x)
function "my" "F" = graph F(a) -> (b) {
  %b = Relu(%a)
}
)";
  const auto g = parse_text(text);
  ASSERT_EQ(g->functions().size(), 1u);
  EXPECT_EQ(to_text(*g), text);
}

TEST(GraphText, AcceptsUsesBeforeTheirLineAndComments) {
  const auto g = parse_text("graph g(x: float[2]) -> (y)  # header\n %y = Relu(%a)\n # between\n %a = Neg(%x)");
  EXPECT_EQ(g->find("y")->producer()->input(0), g->find("a"));
}

TEST(GraphText, NamesLineAndColumn) {
  expect_error(ErrorCode::kParse, "line 2, column 12: no value is called 'b'",
               [] { parse_text("graph g(x: float[2]) -> (y)\n %y = Relu(%b)"); });
  expect_error(ErrorCode::kParse, "line 1, column 12: unknown element type",
               [] { parse_text("graph g(x: flaot[2])"); });
  expect_error(ErrorCode::kParse, "line 1, column 18", [] { parse_text("graph g(x: float[2 +])"); });
  expect_error(ErrorCode::kParse, "expected 2 elements, got 1",
               [] { parse_text("graph g()\n const %c: int64[2] = [1]"); });
  expect_error(ErrorCode::kParse, "the string is not closed", [] { parse_text("graph g()\n opset \"x"); });
  expect_error(ErrorCode::kInvalidGraph, "'y' is given to two values",
               [] { parse_text("graph g(x: float[2])\n %y = Relu(%x)\n %y = Relu(%x)"); });
}

TEST(GraphText, NeverCrashesOnACutText) {
  const std::string text = kEverything;
  for (size_t n = 0; n < text.size(); ++n) {
    try {
      parse_text(text.substr(0, n));
    } catch (const Error&) {
    }
  }
}

TEST(GraphText, CutsLargeTensorsForReading) {
  Graph g;
  g.add_initializer("w", TensorData::of_ints(std::vector<int64_t>(1000, 7)));
  EXPECT_NE(to_text(g, {.max_elements = 2}).find("[7, 7, ...]"), std::string::npos);
}

}  // namespace
}  // namespace ortmodule
