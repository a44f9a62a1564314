// Who runs what, where values lie, and the copies between: providers of the test on devices that need not exist.
#include "placement/partition.h"

#include <algorithm>

#include "records/resolve.h"
#include "support.h"

namespace ortmodule {
namespace {

using testing::resolved;

// Runs products alone, a product with the sum behind it as one.
class Products final : public ExecutionProvider {
 public:
  explicit Products(const ProviderSpec& spec) : ExecutionProvider(spec, "cuda:1", {"joined"}) {
    joined_ = spec.options.count("joined") > 0;
  }
  std::vector<Claim> capability(const std::vector<const Node*>& nodes) const override {
    std::vector<Claim> claims;
    for (const Node* node : nodes) {
      if (node->op() != "MatMul") continue;
      Claim claim{{node}};
      const auto& uses = node->output(0)->uses();
      const auto sum = std::find_if(uses.begin(), uses.end(), [](const Use& use) { return use.node->op() == "Add"; });
      if (joined_ && sum != uses.end()) claim = {{node, sum->node}, "product_and_sum"};
      claims.push_back(claim);
    }
    return claims;
  }

 private:
  bool joined_;
};

ORTMODULE_PROVIDER("products", [](const ProviderSpec& spec) -> std::shared_ptr<const ExecutionProvider> {
  return std::make_shared<const Products>(spec);
});

PlacementResult placed(Graph& graph, const std::vector<ProviderSpec>& specs, const std::string& home,
                       size_t forward = 100) {
  const PlacementResult result = place(graph, make_providers(specs, home), forward);
  resolve(graph, {.infer = false});
  verify_edges(graph);
  return result;
}

std::string provider(const Graph& graph, const char* op) {
  std::string found;
  graph.for_each([&](const Node& node) {
    if (node.op() == op) found += (found.empty() ? "" : " ") + node.provider();
  });
  return found;
}

const char* const kLayer =
    "graph g(x: float[4, 4], w: float[4, 4], b: float[4]) -> (y)\n %p = MatMul(%x, %w)\n %s = Add(%p, %b)\n"
    " %y = Relu(%s)";

TEST(Partition, TheFirstThatClaimsRunsANode) {
  auto g = resolved(kLayer);
  const PlacementResult result = placed(*g, {{"products"}, {"cuda:0", {{"except", "Relu"}}}}, "cuda:0");
  EXPECT_EQ(provider(*g, "MatMul"), "products");
  EXPECT_EQ(provider(*g, "Add"), "cuda:0");
  EXPECT_EQ(provider(*g, "Relu"), "cpu");
  // x and w to the products, p back, s to the host, y home
  EXPECT_EQ(result.to_device, 4u);
  EXPECT_EQ(result.to_host, 1u);
  EXPECT_EQ(g->outputs()[0]->location(), "cuda:0");
  EXPECT_EQ(result.nodes.at("products"), 1u);
}

TEST(Partition, AClaimOfSeveralIsOneNode) {
  auto g = resolved(kLayer);
  const PlacementResult result = placed(*g, {{"products", {{"joined", "1"}}}, {"cuda:0"}}, "cuda:0");
  EXPECT_EQ(result.fused, 1u);
  EXPECT_EQ(provider(*g, "Claimed"), "products");
  EXPECT_EQ(provider(*g, "MatMul"), "");
  EXPECT_EQ(result.to_device, 4u) << "three operands and the way back";
}

TEST(Partition, AClaimThatWouldMeetItselfIsLeft) {
  auto g = resolved("graph g(x: float[4, 4]) -> (y)\n %p = MatMul(%x, %x)\n %r = Relu(%p)\n %y = Add(%p, %r)");
  EXPECT_EQ(placed(*g, {{"products", {{"joined", "1"}}}, {"cuda:0"}}, "cuda:0").fused, 0u);
  EXPECT_EQ(provider(*g, "Add"), "cuda:0");
}

TEST(Partition, ReadersBetweenTheMembersGoBehindThem) {
  auto g = resolved(
      "graph g(x: float[4, 4], b: float[4]) -> (y, z)\n %p = MatMul(%x, %x)\n %z = Relu(%p)\n %y = Add(%p, %b)");
  EXPECT_EQ(placed(*g, {{"products", {{"joined", "1"}}}, {"cuda:0"}}, "cuda:0").fused, 1u);
  EXPECT_EQ(g->outputs()[1]->producer()->op(), "Relu");
}

TEST(Partition, WhatIsComputedOfSizesStaysOnTheHost) {
  auto g = resolved(
      "graph g(x: float[n, 2]) -> (y)\n const %k: int64[1] = [-1]\n const %zero: int64[1] = [0]\n"
      " const %one: int64[1] = [1]\n %s = Shape(%x)\n %n = Slice(%s, %zero, %one)\n %t = Concat(%n, %k) {axis=0}\n"
      " %y = Reshape(%x, %t)");
  const PlacementResult result = placed(*g, {}, "cuda:0");
  EXPECT_EQ(result.to_host + result.to_device, 0u);
  EXPECT_EQ(g->find("k")->location(), "cpu");
  EXPECT_EQ(provider(*g, "Concat"), "cpu");
  EXPECT_EQ(provider(*g, "Reshape"), "cuda:0");
}

TEST(Partition, AHostReadOfADevicesValueIsANode) {
  auto g = resolved("graph g(x: float[4], k: int64[2]) -> (y)\n %y = Reshape(%x, %k)");
  EXPECT_EQ(placed(*g, {}, "cuda:0").to_host, 1u);
  EXPECT_EQ(provider(*g, "MemcpyToHost"), "cuda:0");
}

TEST(Partition, AConstantLiesWhereItIsRead) {
  auto g = resolved(
      "graph g(x: int64[1], r: float[4]) -> (y, z)\n const %k: int64[1] = [4]\n const %two: float[] = [2.0]\n"
      " %y = Add(%x, %k)\n %s = Mul(%r, %two)\n %z = Reshape(%s, %k)");
  placed(*g, {}, "cuda:0");
  g->for_each([&](const Node& node) {
    if (node.op() == "Add") EXPECT_EQ(node.input(1)->location(), "cuda:0");
    if (node.op() == "Mul") EXPECT_EQ(node.input(1)->location(), "cpu") << "a number beside a tensor";
    if (node.op() == "Reshape") EXPECT_EQ(node.input(1)->location(), "cpu");
  });
}

TEST(Partition, AValueThatBothHalvesReadElsewhereIsCopiedInEach) {
  auto g =
      resolved("graph g(x: float[4]) -> (y, d)\n %a = Relu(%x)\n %y = Exp(%a)\n %d = Exp(%a) @{phase=\"backward\"}");
  const PlacementResult result = placed(*g, {{"cuda:0", {{"operators", "Relu"}}}}, "cuda:0", 1);
  EXPECT_EQ(result.to_host, 2u);
  EXPECT_EQ(result.to_device, 2u);
}

TEST(Partition, BodiesArePlacedToo) {
  auto g = resolved(
      "graph g(x: float[4, 4], c: bool[]) -> (y)\n"
      " %y = If(%c, %x) {ortmodule.captured=[\"x\"], then_branch=graph t(x: float[4, 4]) -> (p) {\n"
      "  %p = MatMul(%x, %x)\n }, else_branch=graph e(x: float[4, 4]) -> (q) {\n  %q = Relu(%x)\n }}");
  placed(*g, {{"products"}}, "cuda:0");
  bool found = false;
  g->for_each([&](const Node& node) {
    for (const auto& [name, value] : node.attributes())
      if (const auto* body = std::get_if<std::shared_ptr<Graph>>(&value); body && name == "then_branch") {
        found = true;
        EXPECT_EQ(provider(**body, "MatMul"), "products");
        EXPECT_EQ((*body)->outputs()[0]->location(), "cpu") << "where the If runs";
      }
  });
  EXPECT_TRUE(found);
}

TEST(Partition, UnknownOptionsAndTwiceTheSameAreRefused) {
  EXPECT_THROW(make_providers({{"cpu", {{"operator", "Relu"}}}}, "cpu"), Error);
  EXPECT_THROW(make_providers({{"cuda:0"}, {"cuda:0"}}, "cuda:0"), Error);
}

}  // namespace
}  // namespace ortmodule
