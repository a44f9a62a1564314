// Size expressions: text, algebra, values, errors.
#include "base/dim.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::expect_error;

std::string canonical(const char* text) { return Dim::parse(text).text(); }

TEST(Dim, PrintsEqualExpressionsAlike) {
  EXPECT_EQ(canonical("s0*(s1 + 2)"), canonical("2*s0 + s1*s0"));
  EXPECT_EQ(canonical("a - a"), "0");
  EXPECT_EQ(canonical("(a+b)**2"), canonical("a**2 + 2*a*b + b**2"));
  EXPECT_EQ(Dim::parse("3*batch"), Dim(3) * Dim::symbol("batch"));
}

TEST(Dim, ParsesWhatItPrints) {
  for (const char* text : {"12", "-3*s0", "s0//2", "Mod(s0, 4) + 1", "Max(1, s0)", "Min(a, b, 7)*c",
                           "2*(a//(b + 1)) - 5", "PythonMod(a, 3)", "FloorDiv(a, b)", "a**3", "a % 2"}) {
    const Dim d = Dim::parse(text);
    EXPECT_EQ(Dim::parse(d.text()), d) << text << " prints " << d.text();
  }
}

TEST(Dim, EvaluatesWithPythonsRounding) {
  const SymbolTable symbols{{"a", 7}, {"b", -2}};
  EXPECT_EQ(Dim::parse("a//b").evaluate(symbols), -4);
  EXPECT_EQ(Dim::parse("a % b").evaluate(symbols), -1);
  EXPECT_EQ(Dim::parse("Max(a, b) + Min(a, b)").evaluate(symbols), 5);
  EXPECT_EQ(Dim::parse("a**2*b - 1").evaluate(symbols), -99);
}

TEST(Dim, DividesExactlyOnlyWhereItIsExact) {
  EXPECT_EQ(Dim::exact_div(Dim::parse("6*a*b"), Dim::parse("2*a"))->text(), "3*b");
  EXPECT_FALSE(Dim::exact_div(Dim::parse("6*a + 1"), Dim(2)));
  EXPECT_EQ(Dim::floor_div(Dim::parse("4*a + 8"), Dim(4)).text(), canonical("a + 2"));
  EXPECT_EQ(Dim::mod(Dim::parse("4*a"), Dim(4)), Dim(0));
}

TEST(Dim, NamesThePositionOfASyntaxError) {
  expect_error(ErrorCode::kParse, "at position 4", [] { Dim::parse("s0 +"); });
  expect_error(ErrorCode::kParse, "at position 3", [] { Dim::parse("s0 s1"); });
  expect_error(ErrorCode::kParse, "unknown function", [] { Dim::parse("sin(s0)"); });
  expect_error(ErrorCode::kParse, "too deeply nested", [] { Dim::parse(std::string(5000, '(')); });
  EXPECT_EQ(Dim::parse("9223372036854775807"), Dim(INT64_MAX));
  expect_error(ErrorCode::kParse, "number too large", [] { Dim::parse("9223372036854775808"); });
  expect_error(ErrorCode::kParse, "number too large", [] { Dim::parse("99999999999999999999"); });
}

TEST(Dim, RefusesToOverflow) {
  expect_error(ErrorCode::kInvalidArgument, "overflows", [] { Dim::parse("9000000000000000000*4"); });
  const Dim d = Dim::parse("a*a*a");
  expect_error(ErrorCode::kInvalidArgument, "overflows", [&] { d.evaluate({{"a", int64_t{1} << 40}}); });
  expect_error(ErrorCode::kInvalidArgument, "terms", [] { Dim::parse("(a+b+c+d+e+f+g)**16"); });
}

TEST(Dim, NamesAnUnboundSymbol) {
  expect_error(ErrorCode::kInvalidArgument, "'b'", [] { Dim::parse("a + b").evaluate({{"a", 1}}); });
  expect_error(ErrorCode::kInvalidArgument, "division by zero", [] { Dim::parse("4//a").evaluate({{"a", 0}}); });
}

TEST(Dim, TellsALoneSymbolFromAnExpression) {
  EXPECT_EQ(Dim::parse("seq").lone_symbol(), "seq");
  EXPECT_FALSE(Dim::parse("2*seq").lone_symbol());
  EXPECT_FALSE(Dim::parse("Max(seq, 1)").lone_symbol());
  EXPECT_FALSE(Dim(4).lone_symbol());
}

// The visitor's sum of products has the expression's value.
TEST(Dim, VisitsEveryOperation) {
  struct Values : DimVisitor {
    std::vector<int64_t> values;
    size_t keep(int64_t v) { return values.push_back(v), values.size() - 1; }
    size_t number(int64_t v) override { return keep(v); }
    size_t symbol(const std::string& name) override { return keep(name == "a" ? 7 : 3); }
    size_t apply(Op op, size_t i, size_t j) override {
      const int64_t x = values[i], y = values[j];
      switch (op) {
        case Op::kAdd:
          return keep(x + y);
        case Op::kMul:
          return keep(x * y);
        case Op::kFloorDiv:
          return keep(x / y);
        case Op::kMod:
          return keep(x % y);
        case Op::kMax:
          return keep(std::max(x, y));
        default:
          return keep(std::min(x, y));
      }
    }
  } visitor;
  const Dim d = Dim::parse("2*a**2*b + Max(a, b)//2 - Mod(a, b)*Min(a, b) + 5");
  EXPECT_EQ(visitor.values[d.visit(visitor)], d.evaluate({{"a", 7}, {"b", 3}}));
}

}  // namespace
}  // namespace ortmodule
