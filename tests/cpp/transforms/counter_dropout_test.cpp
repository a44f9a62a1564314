// Counter-based dropout replaces the standard's where the user asked for it and nobody reads the mask.
#include "support.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::resolved;
using testing::run_pass;

size_t replaced(const std::string& node, TransformContext context) {
  auto g = resolved("graph g(x: float[2]) -> (y)\n const %r: double[] = [0.5]\n const %t: bool[] = [1]\n" + node +
                    "\n %y = Relu(%d)");
  run_pass(make_pass("counter_dropout"), *g, context);
  return count(*g, "ai.ortmodule::PhiloxDropout");
}

TEST(CounterDropout, ReplacesTrainingDropoutWhenAskedFor) {
  TransformContext fast{.training = true};
  fast.options.dropout = "fast";
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", fast), 1u);
  EXPECT_EQ(replaced("%d, %m = Dropout(%x, _, %t)", fast), 1u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t) {seed=7}", fast), 0u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r)", fast), 0u);
  EXPECT_EQ(replaced("%h, %m = Dropout(%x, %r, %t)\n %f = Cast(%m) {to=1}\n %d = Add(%h, %f)", fast), 0u);
}

// A checkpoint runs a module in train mode twice, first without gradients: both must draw alike.
TEST(CounterDropout, ReplacesTrainingDropoutOfAnInferenceSession) {
  TransformContext inference;
  inference.options.dropout = "fast";
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", inference), 1u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r)", inference), 0u);
}

TEST(CounterDropout, ReplacesWhatMakesAGraphOutput) {
  TransformContext fast{.training = true};
  fast.options.dropout = "fast";
  auto g = resolved(
      "graph g(x: float[2]) -> (y, z)\n const %r: double[] = [0.5]\n const %t: bool[] = [1]\n"
      " %y = Dropout(%x, %r, %t)\n %z = Relu(%y)");
  EXPECT_EQ(run_pass(make_pass("counter_dropout"), *g, fast), 1u);
  EXPECT_EQ(count(*g, "Dropout"), 0u);
  EXPECT_EQ(g->outputs()[0]->name(), "y");
  EXPECT_EQ(g->outputs()[0]->producer()->op(), "PhiloxDropout");
  EXPECT_EQ(g->find("z")->producer()->input(0), g->outputs()[0]);
  EXPECT_EQ(g->find("y")->type().text(), "float[2]");
}

TEST(CounterDropout, GivesEachNodeAStreamOfOneState) {
  TransformContext fast{.training = true};
  fast.options.dropout = "fast";
  auto g = resolved(
      "graph g(x: float[2]) -> (y, z)\n const %r: double[] = [0.5]\n const %t: bool[] = [1]\n"
      " %y = Dropout(%x, %r, %t)\n %z = Dropout(%x, %r, %t)");
  run_pass(make_pass("counter_dropout"), *g, fast);
  EXPECT_EQ(count(*g, "ai.ortmodule::RandomState"), 1u);
  const Node *y = g->find("y")->producer(), *z = g->find("z")->producer();
  EXPECT_EQ(y->input(2), z->input(2));
  EXPECT_EQ(y->get_int("stream", -1), 0);
  EXPECT_EQ(z->get_int("stream", -1), 1);
  EXPECT_EQ(run_pass(make_pass("common_subexpression_elimination"), *g, fast), 0u) << "they draw two masks";
  // One that comes later has a stream that nobody had before, also where another is gone by then.
  NodeArg* kept = g->find("z");
  g->clear_outputs();
  g->add_output(kept);
  run_pass(make_pass("dead_node_elimination"), *g, fast);
  NodeArg* training = g->constant(TensorData::scalar(DType::kBool, 1));
  Node* late = g->add_node("", "Dropout", {g->find("x"), g->find("r"), training}, {"late"});
  infer_node(*late);
  g->add_output(late->output(0));
  run_pass(make_pass("counter_dropout"), *g, fast);
  EXPECT_EQ(g->find("late")->producer()->get_int("stream", -1), 2);
}

TEST(CounterDropout, DoesNothingUnlessAskedFor) {
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", {.training = true}), 0u);
  EXPECT_EQ(replaced("%d = Dropout(%x, %r, %t)", {}), 0u);
}

TEST(CounterDropout, KeepsAttentionWithDropoutWholeInTraining) {
  const char* text = R"(graph g(q: float[b, 2, s, 8], k: float[b, 2, s, 8], v: float[b, 2, s, 8]) -> (y)
    opset "" 23
    const %r: double[] = [0.1]
    %a = ai.ortmodule::AttentionDropout(%q, %k, %v, _, %r) {is_causal=1}
    %y = Relu(%a))";
  TransformContext fast{.training = true};
  fast.options.dropout = "fast";
  auto g = resolved(text);
  run_pass(make_pass("counter_dropout"), *g, fast);
  EXPECT_EQ(count(*g, "ai.ortmodule::PhiloxAttention"), 1u);
  EXPECT_EQ(g->find("y")->producer()->input(0)->producer()->get_int("is_causal", 0), 1);
  EXPECT_EQ(run_pass(make_pass("decompose_attention"), *g, fast), 0u);
  auto exact = resolved(text);
  EXPECT_EQ(run_pass(make_pass("counter_dropout"), *exact, {.training = true}), 0u);
}

}  // namespace
}  // namespace ortmodule
