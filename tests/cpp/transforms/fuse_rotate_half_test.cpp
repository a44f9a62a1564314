// Halves that change places are a RotateHalf.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kSlices =
    "graph g(x: float[b, 8], z: float[b, 8]) -> (y)\n const %zero: int64[1] = [0]\n const %four: int64[1] = [4]\n"
    " const %end: int64[1] = [9223372036854775807]\n const %last: int64[1] = [-1]\n const %half: int64[1] = [-4]\n"
    " const %two: int64[1] = [2]\n";

TEST(FuseRotateHalf, TakesPartsOfASplitAndSlices) {
  for (const std::string& halves :
       {std::string(" %a, %b = Split(%x) {axis=-1, num_outputs=2}\n"),
        std::string(" %a = Slice(%x, %zero, %four, %last)\n %b = Slice(%x, %four, %end, %last)\n"),
        std::string(" %a = Slice(%x, %zero, %half, %last)\n %b = Slice(%x, %half, %end, %last)\n")}) {
    auto g = resolved(kSlices + halves + " %n = Neg(%b)\n %c = Concat(%n, %a) {axis=-1}\n %y = Mul(%c, %z)");
    EXPECT_EQ(run_pass(make_pass("fuse_rotate_half"), *g), 1u) << halves;
    const Node* turned = g->find("y")->producer()->input(0)->producer();
    EXPECT_EQ(turned->qualified_op(), "ai.ortmodule::RotateHalf") << halves;
    EXPECT_EQ(turned->input(0), g->find("x"));
    run_pass(make_pass("dead_node_elimination"), *g);
    EXPECT_EQ(g->node_count(), 2u);
  }
}

TEST(FuseRotateHalf, LeavesOtherOrdersPartsAxesAndGraphOutputs) {
  const std::string halves = " %a, %b = Split(%x) {axis=-1, num_outputs=2}\n";
  for (const std::string& rest :
       {halves + " %n = Neg(%a)\n %c = Concat(%n, %b) {axis=-1}\n %y = Mul(%c, %z)",
        halves + " %n = Neg(%b)\n %c = Concat(%a, %n) {axis=-1}\n %y = Mul(%c, %z)",
        halves + " %n = Neg(%b)\n %y = Concat(%n, %a) {axis=-1}",
        std::string(" %a = Slice(%x, %zero, %two, %last)\n %b = Slice(%x, %two, %four, %last)\n"
                    " %n = Neg(%b)\n %c = Concat(%n, %a) {axis=-1}\n %y = Cos(%c)"),
        std::string(" %a, %q = Split(%x) {axis=-1, num_outputs=2}\n %p, %b = Split(%z) {axis=-1, num_outputs=2}\n"
                    " %n = Neg(%b)\n %c = Concat(%n, %a) {axis=-1}\n %y = Cos(%c)"),
        std::string(" %a, %b = Split(%x) {axis=-1, num_outputs=2}\n %n = Neg(%b)\n"
                    " %c = Concat(%n, %a) {axis=0}\n %y = Cos(%c)")}) {
    auto g = resolved(kSlices + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_rotate_half"), *g), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
