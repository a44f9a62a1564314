// Which outputs' backward passes meet at a value that forward saved, and which of them each saved value is for.
#include "plan/separate_backwards.h"

#include "gradient/gradient_graph_builder.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;
using Sets = std::vector<OutputSet>;

const Sets kApart = {{true, false}, {false, true}}, kTogether = {{true, true}, {true, true}};

class SeparateBackwardsTest : public ::testing::Test {
 protected:
  SeparateBackwards of(const std::string& text) {
    graph_ = resolved(text);
    const GradientResult gradient = build_gradient(*graph_, {graph_->outputs(), {graph_->inputs().at(0)}});
    for (NodeArg* dx : gradient.dxs)
      if (dx) graph_->add_output(dx);
    return separate_backwards(*graph_, gradient.dys);
  }
  std::shared_ptr<Graph> graph_;
};

TEST_F(SeparateBackwardsTest, OutputsMeetWhereOneOperatorReadsAValueForBoth) {
  EXPECT_EQ(of("graph g(x: float[4]) -> (y, z)\n %a = Tanh(%x)\n %y = Neg(%a)\n %z = Exp(%a)").meets, kTogether);
}

TEST_F(SeparateBackwardsTest, OutputsThatShareOnlySumsAndTheInputDoNotMeet) {
  const SeparateBackwards got = of("graph g(x: float[4]) -> (y, z)\n %a = Neg(%x)\n %y = Tanh(%a)\n %z = Exp(%a)");
  EXPECT_EQ(got.meets, kApart);
  EXPECT_EQ(got.needs.at("y"), kApart[0]);
  EXPECT_EQ(got.needs.at("z"), kApart[1]);
}

TEST_F(SeparateBackwardsTest, AValueThatBothReadApartIsNeededByBoth) {
  const SeparateBackwards got =
      of("graph g(x: float[4], w: float[4]) -> (y, z)\n %y = Mul(%x, %w)\n %b = Neg(%x)\n %z = Mul(%b, %w)");
  EXPECT_EQ(got.meets, kApart);
  EXPECT_EQ(got.needs.at("w"), (OutputSet{true, true}));
}

TEST_F(SeparateBackwardsTest, SizesAreNoSavedValues) {
  const SeparateBackwards got =
      of("graph g(x: float[n, m], b: float[m]) -> (y, z)\n %s = Shape(%x)\n %a = Reshape(%x, %s)\n %y = Neg(%a)\n"
         " %z = Abs(%a)");
  EXPECT_FALSE(got.meets.at(0).at(0)) << "the backward of y reads no elements";
  EXPECT_FALSE(got.meets.at(0).at(1));
  EXPECT_TRUE(got.meets.at(1).at(1));
}

TEST_F(SeparateBackwardsTest, MoreOutputsThanAWordHasBits) {
  std::string outputs, nodes = "\n %a = Tanh(%x)\n %s = Neg(%x)";
  for (int k = 0; k < 70; ++k) {
    const std::string name = "y" + std::to_string(k);
    outputs += (k ? ", " : "") + name;
    nodes += "\n %" + name + " = Exp(%" + (k % 2 ? "a" : "s") + ")";
  }
  const SeparateBackwards got = of("graph g(x: float[4]) -> (" + outputs + ")" + nodes);
  EXPECT_TRUE(got.meets.at(1).at(69)) << "both go through Tanh";
  EXPECT_FALSE(got.meets.at(0).at(68));
  EXPECT_TRUE(got.meets.at(68).at(68));
  EXPECT_FALSE(got.meets.at(0).at(69));
}

}  // namespace
}  // namespace ortmodule
