// Normalized sums, embeddings and biased activations are one node, and only where they are one.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kInputs =
    "graph g(x: float[b, s, 2], z: float[b, s, 2], ids: int64[b, s], places: int64[1, s]) -> (y)\n"
    " const %g: float[2] = [1, 2]\n const %k: float[2] = [3, 4]\n const %words: float[3, 2] = [1, 2, 3, 4, 5, 6]\n"
    " const %rows: float[2, 2] = [1, 2, 3, 4]\n";

TEST(FuseSkipLayerNorm, TakesASumAndItsBias) {
  auto g =
      resolved(kInputs + " %c = Add(%x, %k)\n %a = Add(%z, %c)\n %y = LayerNormalization(%a, %g) {epsilon=0.25}\n");
  EXPECT_EQ(run_pass(make_pass("fuse_skip_layer_norm"), *g), 1u);
  const Node* node = g->outputs()[0]->producer();
  EXPECT_EQ(node->qualified_op(), "com.microsoft::SkipLayerNormalization");
  EXPECT_EQ(node->input(0), g->find("x"));
  EXPECT_EQ(node->input(1), g->find("z"));
  EXPECT_EQ(node->input(3), nullptr);
  EXPECT_EQ(node->input(4), g->find("k"));
  EXPECT_DOUBLE_EQ(node->get_float("epsilon", 0), 0.25);
}

TEST(FuseSkipLayerNorm, GivesTheSumToItsOtherReadersInFrontOfTheNormalizationToo) {
  auto g = resolved(kInputs + " %a = Add(%x, %z)\n %r = Relu(%a)\n %n = RMSNormalization(%a, %g)\n %y = Add(%n, %r)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_skip_layer_norm"), *g), 1u);
  const Node* node = g->find("a")->producer();
  EXPECT_EQ(node->qualified_op(), "com.microsoft::SkipSimplifiedLayerNormalization");
  EXPECT_EQ(node->output(3), g->find("a"));
  EXPECT_EQ(count(*g, "Add"), 1u);
}

TEST(FuseSkipLayerNorm, LeavesTrainingAndWhatIsNone) {
  TransformContext training;
  training.training = true;
  const std::string sum = " %a = Add(%x, %z)\n";
  auto g = resolved(kInputs + sum + " %y = LayerNormalization(%a, %g)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_skip_layer_norm"), *g, training), 0u);
  for (const std::string& rest :
       {sum + " %h = Neg(%g)\n %y = LayerNormalization(%a, %h)\n",  // a scale that a node makes
        sum + " %n, %m = LayerNormalization(%a, %g)\n %y = Add(%n, %m)\n",
        std::string(" %a = Add(%x, %k)\n %y = LayerNormalization(%a, %g)\n")}) {
    auto other = resolved(kInputs + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_skip_layer_norm"), *other), 0u) << rest;
  }
}

TEST(FuseEmbedLayerNorm, TellsPositionsByTheirSizes) {
  auto g = resolved(kInputs +
                    " %p = Gather(%rows, %places)\n %w = Gather(%words, %ids)\n %a = Add(%p, %w)\n"
                    " %y = LayerNormalization(%a, %g, %k)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_embed_layer_norm"), *g), 1u);
  const Node* node = g->outputs()[0]->producer();
  EXPECT_EQ(node->qualified_op(), "com.microsoft::EmbedLayerNormalization");
  EXPECT_EQ(node->input(0), g->find("ids"));
  EXPECT_EQ(node->input(2), g->find("words"));
  EXPECT_EQ(node->input(3), g->find("rows"));
  EXPECT_EQ(node->input(8), g->find("places"));
  EXPECT_EQ(node->input(1), nullptr);
}

TEST(FuseEmbedLayerNorm, LeavesWhatIsNone) {
  const std::string lookups = " %p = Gather(%rows, %places)\n %w = Gather(%words, %ids)\n %a = Add(%p, %w)\n";
  for (const std::string& rest :
       {lookups + " %y = LayerNormalization(%a, %g)\n",
        lookups + " %n = LayerNormalization(%a, %g, %k)\n %y = Add(%n, %w)\n",
        std::string(" %w = Gather(%words, %ids)\n %a = Add(%x, %w)\n %y = LayerNormalization(%a, %g, %k)\n"),
        std::string(" %v = Neg(%words)\n %p = Gather(%rows, %places)\n %w = Gather(%v, %ids)\n %a = Add(%p, %w)\n"
                    " %y = LayerNormalization(%a, %g, %k)\n")}) {
    auto g = resolved(kInputs + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_embed_layer_norm"), *g), 0u) << rest;
  }
}

TEST(FuseBiasGelu, TakesTheErrorFunctionAlone) {
  auto g = resolved(kInputs + " %a = Add(%k, %x)\n %y = Gelu(%a)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_bias_gelu"), *g), 1u);
  const Node* node = g->outputs()[0]->producer();
  EXPECT_EQ(node->qualified_op(), "com.microsoft::BiasGelu");
  EXPECT_EQ(node->input(1), g->find("k"));
  for (const std::string& rest : {std::string(" %a = Add(%k, %x)\n %y = Gelu(%a) {approximate=\"tanh\"}\n"),
                                  std::string(" %a = Add(%z, %x)\n %y = Gelu(%a)\n"),
                                  std::string(" %a = Add(%k, %x)\n %n = Gelu(%a)\n %y = Add(%n, %a)\n")}) {
    auto other = resolved(kInputs + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_bias_gelu"), *other), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
