// Copies of a step's operands to the host stand at the head of forward.
#include "placement/early_copies.h"

#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

size_t run(Graph& graph) {
  const size_t moved = begin_copies_early(graph);
  verify_edges(graph);
  resolve(graph);
  return moved;
}

std::vector<std::string> first_ops(const Graph& graph, size_t count) {
  std::vector<std::string> ops;
  for (const Node* node : graph.nodes())
    if (ops.size() < count) ops.push_back(node->op());
  return ops;
}

TEST(EarlyCopies, OfAnInputAndOfAViewOfOneGoFirstInTheirOrder) {
  auto g = resolved(R"(graph g(x: float[4, 8], labels: int64[2, 2], lengths: int64[3]) -> (y, rows, more)
    %y = Exp(%x)
    const %four: int64[1] = [4]
    %flat = Reshape(%labels, %four)
    %there = ai.ortmodule::MemcpyToHost(%flat)
    %rows = ai.ortmodule::LabelRows(%there) {ignore_index=-100}
    %long = ai.ortmodule::MemcpyToHost(%lengths)
    %more = Neg(%long))");
  EXPECT_EQ(run(*g), 2u);
  EXPECT_EQ(first_ops(*g, 4), (std::vector<std::string>{"Reshape", "MemcpyToHost", "MemcpyToHost", "Exp"}));
}

TEST(EarlyCopies, OfWhatIsComputedStaysBehindIt) {
  auto g = resolved(R"(graph g(x: float[4, 8], a: int64[4]) -> (y, z)
    %y = Exp(%x)
    %b = Neg(%a)
    %there = ai.ortmodule::MemcpyToHost(%b)
    %z = Neg(%there))");
  EXPECT_EQ(run(*g), 0u);
  EXPECT_EQ(first_ops(*g, 1), std::vector<std::string>{"Exp"});
}

TEST(EarlyCopies, OfBackwardStayThere) {
  auto g = resolved(R"(graph g(x: float[4, 8], a: int64[4]) -> (y, z)
    %y = Exp(%x)
    %there = ai.ortmodule::MemcpyToHost(%a)
    %z = Neg(%there))");
  for (const char* value : {"there", "z"}) g->find(value)->producer()->set_phase(Phase::kBackward);
  EXPECT_EQ(run(*g), 0u);
}

}  // namespace
}  // namespace ortmodule
