// Attention is taken apart where its gradient needs it, and only there.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

constexpr const char* kAttention =
    R"(graph g(q: float[b, 2, s, 8], k: float[b, 2, s, 8], v: float[b, 2, s, 8], m: float[s, s]) -> (y)
  opset "" 23
  %y = Attention(%q, %k, %v, %m))";

TEST(DecomposeAttention, LeavesAttentionWhoseMaskIsNotTrained) {
  auto g = resolved(kAttention);
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g, {.training = true, .grad_inputs = {g->find("q")}}), 0u);
}

TEST(DecomposeAttention, LeavesATrainedMaskToTheFusedKernel) {
  auto g = resolved(kAttention);
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g, {.training = true, .grad_inputs = {g->find("m")}}), 0u);
}

TEST(DecomposeAttention, TakesATrainedMaskOfATypeWithoutFusedKernelApart) {
  std::string text = kAttention;
  for (size_t at; (at = text.find("float[")) != std::string::npos;) text.replace(at, 6, "double[");
  auto g = resolved(text.c_str());
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g, {.training = true, .grad_inputs = {g->find("m")}}), 1u);
  EXPECT_EQ(count(*g, "Attention"), 0u);
  EXPECT_EQ(count(*g, "Softmax"), 1u);
  EXPECT_EQ(g->outputs()[0]->name(), "y");
  EXPECT_EQ(g->find("y")->type().text(), "double[b, 2, s, 8]");
}

TEST(DecomposeAttention, TakesAttentionWithDropoutApartInTrainingOnly) {
  const char* text = R"(graph g(q: float[b, 2, s, 8], k: float[b, 2, s, 8], v: float[b, 2, s, 8]) -> (y)
    opset "" 23
    const %r: double[] = [0.1]
    %y = ai.ortmodule::AttentionDropout(%q, %k, %v, _, %r) {is_causal=1})";
  auto g = resolved(text);
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g), 0u);
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g, {.training = true}), 1u);
  EXPECT_EQ(count(*g, "Dropout"), 1u);
}

}  // namespace
}  // namespace ortmodule
