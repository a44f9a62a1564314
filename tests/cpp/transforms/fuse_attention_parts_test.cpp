// What stands around attention in decoders: rotary positions, repeated key heads, keys of earlier tokens.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

const std::string kRotary =
    "graph g(x: float[b, 4, s, 8], f: float[b, s, 4]) -> (y)\n const %i: int64[1] = [1]\n"
    " %r = ai.ortmodule::RotateHalf(%x)\n";
const std::string kCaches =
    " %e = Concat(%f, %f) {axis=-1}\n %co = Cos(%e)\n %si = Sin(%e)\n %c = Unsqueeze(%co, %i)\n"
    " %n = Unsqueeze(%si, %i)\n";
const std::string kTurn = " %m = Mul(%x, %c)\n %t = Mul(%r, %n)\n";

TEST(FuseRotaryEmbedding, TakesCachesOfHalfTheSize) {
  auto g = resolved(kRotary + kCaches + kTurn + " %y = Add(%m, %t)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_rotary_embedding"), *g), 1u);
  run_pass(make_pass("dead_node_elimination"), *g);
  const Node* node = g->outputs()[0]->producer();
  EXPECT_EQ(node->qualified_op(), "RotaryEmbedding");
  EXPECT_EQ(node->input(0), g->find("x"));
  EXPECT_EQ(node->input(1)->producer()->qualified_op(), "Cos");
  EXPECT_EQ(node->input(1)->producer()->input(0), g->find("f"));
  EXPECT_EQ(g->node_count(), 3u);
}

TEST(FuseRotaryEmbedding, LeavesWhatIsNone) {
  for (const std::string& rest :
       {kCaches + " %m = Mul(%x, %n)\n %t = Mul(%r, %c)\n %y = Add(%m, %t)\n",  // sine and cosine change places
        kCaches + kTurn + " %u = Add(%m, %t)\n %y = Add(%u, %r)\n",
        " %w = Neg(%f)\n %e = Concat(%f, %w) {axis=-1}\n" + kCaches.substr(kCaches.find('\n') + 1) + kTurn +
            " %y = Add(%m, %t)\n"}) {
    auto g = resolved(kRotary + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_rotary_embedding"), *g), 0u) << rest;
  }
}

const std::string kAttention =
    "graph g(q: float[b, 4, s, 8], k: float[b, 2, t, 8], v: float[b, 2, t, 8], pk: float[b, 2, p, 8],"
    " pv: float[b, 2, p, 8]) -> (y)\n";

TEST(FuseGroupedHeads, KeyHeadsServeGroups) {
  const std::string sizes =
      "graph g(q: float[2, 4, 5, 8], k: float[2, 2, 5, 8], v: float[2, 2, 5, 8]) -> (y)\n"
      " const %two: int64[1] = [2]\n const %wide: int64[5] = [2, 2, 2, 5, 8]\n const %all: int64[4] = [2, 4, 5, 8]\n"
      " const %turned: int64[1] = [1]\n";
  const std::string k = " %ku = Unsqueeze(%k, %two)\n %ke = Expand(%ku, %wide)\n %kr = Reshape(%ke, %all)\n";
  const std::string v = " %vu = Unsqueeze(%v, %two)\n %ve = Expand(%vu, %wide)\n %vr = Reshape(%ve, %all)\n";
  auto g = resolved(sizes + k + v + " %y = Attention(%q, %kr, %vr)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_grouped_heads"), *g), 1u);
  EXPECT_EQ(g->outputs()[0]->producer()->input(1), g->find("k"));
  EXPECT_EQ(g->outputs()[0]->producer()->input(2), g->find("v"));
  // Heads that alternate: [h0, h1, h0, h1].
  const std::string turned = " %ku = Unsqueeze(%k, %turned)\n %ke = Expand(%ku, %wide)\n %kr = Reshape(%ke, %all)\n";
  auto other = resolved(sizes + turned + v + " %y = Attention(%q, %kr, %vr)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_grouped_heads"), *other), 0u);
  auto one = resolved(sizes + k + " %vr = Concat(%v, %v) {axis=1}\n %y = Attention(%q, %kr, %vr)\n");
  EXPECT_EQ(run_pass(make_pass("fuse_grouped_heads"), *one), 0u);
}

TEST(FuseKeyCache, PastAndPresentAreTheNodes) {
  const std::string both = " %ck = Concat(%pk, %k) {axis=2}\n %cv = Concat(%pv, %v) {axis=-2}\n";
  auto g = resolved(kAttention + both + " %y = Attention(%q, %ck, %cv) {scale=0.5}\n");
  g->add_output(g->find("ck"));
  EXPECT_EQ(run_pass(make_pass("fuse_key_cache"), *g), 1u);
  const Node* node = g->outputs()[0]->producer();
  EXPECT_EQ(node->input(1), g->find("k"));
  EXPECT_EQ(node->input(4), g->find("pk"));
  EXPECT_EQ(node->input(5), g->find("pv"));
  EXPECT_EQ(node->output(1), g->outputs()[1]);
  EXPECT_EQ(g->outputs()[1]->name(), "ck");
  EXPECT_EQ(count(*g, "Concat"), 0u);
  for (const std::string& rest : {both + " %y = Attention(%q, %ck, %cv) {is_causal=1}\n",
                                  both + " %z = Attention(%q, %ck, %cv)\n %w = ReduceSum(%ck)\n %y = Add(%z, %w)\n",
                                  std::string(" %ck = Concat(%pk, %k) {axis=2}\n %y = Attention(%q, %ck, %ck)\n")}) {
    auto other = resolved(kAttention + rest);
    EXPECT_EQ(run_pass(make_pass("fuse_key_cache"), *other), 0u) << rest;
  }
}

}  // namespace
}  // namespace ortmodule
