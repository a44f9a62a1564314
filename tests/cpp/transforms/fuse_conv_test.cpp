// Convolutions take a sum and a Relu that follow, where nothing else sees what is between.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::resolved;
using testing::run_pass;

const std::string kBegin =
    "graph g(x: float[n, 1, 8, 8], z: float[n, 2, 8, 8], o: float[2, 1, 1]) -> (y)\n"
    " const %w: float[2, 1, 1, 1] = [1, 2]\n const %b: float[2] = [3, 4]\n";

TEST(FuseConv, TakesARelu) {
  auto g = resolved(kBegin + " %c = Conv(%x, %w, %b) {strides=[1, 1]}\n %r = Relu(%c)\n %y = Neg(%r)");
  EXPECT_EQ(run_pass(make_pass("fuse_conv"), *g), 1u);
  const Node* node = g->find("y")->producer()->input(0)->producer();
  EXPECT_EQ(node->qualified_op(), "com.microsoft::FusedConv");
  EXPECT_EQ(node->input(3), nullptr);
  EXPECT_EQ(node->get_string("activation", ""), "Relu");
  EXPECT_EQ(node->get_ints("strides"), (std::vector<int64_t>{1, 1}));
}

TEST(FuseConv, TakesASumOnEitherSide) {
  for (const char* sum : {" %s = Add(%c, %z)\n", " %s = Add(%z, %c)\n"}) {
    auto g = resolved(kBegin + " %c = Conv(%x, %w)\n" + sum + " %r = Relu(%s)\n %y = Neg(%r)");
    EXPECT_EQ(run_pass(make_pass("fuse_conv"), *g), 1u) << sum;
    const Node* node = g->find("y")->producer()->input(0)->producer();
    EXPECT_EQ(node->input(2), nullptr);
    EXPECT_EQ(node->input(3), g->find("z"));
  }
}

TEST(FuseConv, LeavesWhatIsSeenBroadcastOrGiven) {
  for (const std::string& rest : {
           std::string(" %c = Conv(%x, %w)\n %r = Relu(%c)\n %y = Add(%r, %c)"),
           std::string(" %c = Conv(%x, %w)\n %s = Add(%c, %o)\n %y = Relu(%s)"),
           std::string(" %c = Conv(%x, %w)\n %s = Add(%c, %z)\n %r = Relu(%s)\n %y = Add(%r, %s)"),
           std::string(" %g = Neg(%w)\n %c = Conv(%x, %g)\n %y = Relu(%c)"),
       }) {
    auto g = resolved(kBegin + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_conv"), *g), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
