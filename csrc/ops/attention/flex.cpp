// FlexAttention: prob_mod(softmax(score_mod(scale * q k^T))) v, where score_mod and prob_mod are subgraphs.
//
// No kernel of its own: decompose_attention replaces the node by its body, with the subgraphs' nodes in their places,
// before the gradient is built. So the modifiers are differentiated, fused and planned as all other nodes are, and the
// values around the node that they read (a learned bias) get their gradients.
#include "base/status.h"
#include "graph/subgraph.h"
#include "ops/attention/body_parts.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "records/subgraphs/copy_nodes.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

enum Slot : size_t { kQuery, kKey, kValue };
constexpr const char* kModifiers[] = {"score_mod", "prob_mod"};

// What softmax and the modifiers compute in.
DType softmax_type(const Node& node) {
  const DType dtype = node.input(kQuery)->type().dtype;
  const DType standard = dtype == DType::kDouble ? dtype : DType::kFloat;
  return static_cast<DType>(node.get_int("softmax_precision", static_cast<int64_t>(standard)));
}

void check_equal(InferContext& c, const char* what, const Dim& a, const Dim& b) {
  if (a.is_known() && b.is_known() && a != b) c.error(str(what, " differ: ", a.text(), " and ", b.text()));
}

void infer_modifier(InferContext& c, const char* name, const TypeInfo& scores) {
  BodyTypes body(c, name, 1);
  if (body.output_count() != 1) c.error(str("the graph '", name, "' has ", body.output_count(), " outputs, not one"));
  body.set_formal(0, body.inward(scores));
  body.infer();
  const TypeInfo& result = body.output(0);
  if (result.dtype != scores.dtype)
    c.error(str("the graph '", name, "' takes ", dtype_name(scores.dtype), " and gives ", dtype_name(result.dtype)));
  if (!result.shape) return;
  if (result.shape->size() != 4)
    c.error(str("the graph '", name, "' should keep rank 4, gives ", result.shape->size()));
  for (size_t axis = 0; scores.shape && axis < 4; ++axis)
    check_equal(c, "sizes of scores before and after a modifier", (*scores.shape)[axis], (*result.shape)[axis]);
}

void infer_flex_attention(InferContext& c) {
  if (explicit_input_count(c.node()) != 3) c.error("takes three inputs: Q, K and V");
  const Shape *q = c.shape_of_rank(kQuery, 4), *k = c.shape_of_rank(kKey, 4), *v = c.shape_of_rank(kValue, 4);
  const DType type = softmax_type(c.node());
  if (!is_floating(type)) c.error(str("softmax_precision should be a floating type, got ", dtype_name(type)));
  if (q && k) {
    const Dim &hq = (*q)[1], &hk = (*k)[1];
    if (hq.is_known() && hk.is_known() && (hk.value() == 0 || hq.value() % hk.value() != 0))
      c.error(str(hq.value(), " query heads do not divide over ", hk.value(), " key heads"));
    check_equal(c, "the head sizes of Q and K", (*q)[3], (*k)[3]);
  }
  if (k && v) {
    check_equal(c, "the heads of K and V", (*k)[1], (*v)[1]);
    check_equal(c, "the lengths of K and V", (*k)[2], (*v)[2]);
  }
  TypeInfo scores{type, std::nullopt};
  if (q && k) scores.shape = Shape{(*q)[0], (*q)[1], (*q)[2], (*k)[2]};
  for (const char* name : kModifiers)
    if (c.node().find_attribute(name)) infer_modifier(c, name, scores);
  std::optional<Shape> y;
  if (q && v) y = Shape{(*q)[0], (*q)[1], (*q)[2], (*v)[3]};
  c.out(0, c.dtype(kQuery), std::move(y));
}

// The modifier's nodes on x; x itself where there is none.
NodeArg* modify(BodyContext& c, const char* name, NodeArg* x) {
  Node& node = c.node();
  const std::shared_ptr<Graph> given = find_subgraph(node, name);
  if (!given) return x;
  const std::unique_ptr<Graph> body = given->clone();  // its own subgraphs move into the copies
  const std::vector<std::string> captured = node.get_strings(kCapturedAttribute);
  const size_t first = explicit_input_count(node);
  ValueMap values;
  for (const NodeArg* in : body->inputs()) values[in] = x;
  for (size_t i = 0; i < captured.size(); ++i)
    if (const NodeArg* in = body->find(captured[i]); in && in->is_graph_input()) values[in] = node.input(first + i);
  for (const auto& [inner, made] : copy_nodes(*body, node, values)) infer_node(*made);
  return values.at(body->outputs()[0]);
}

void flex_attention_body(BodyContext& c) {
  NodeArg* q = c.in(kQuery);
  NodeArg *k = attention::repeat_heads(c, c.in(kKey), q), *v = attention::repeat_heads(c, c.in(kValue), q);
  const DType type = softmax_type(c.node());
  NodeArg* scores = attention::scaled_scores(c, q, k, attention::root_of_scale(c, q));
  scores = modify(c, "score_mod", attention::cast(c, scores, type));
  NodeArg* probabilities = modify(c, "prob_mod", c.emit("Softmax", {scores}, {{"axis", int64_t{-1}}}));
  NodeArg* y = c.emit("MatMul", {probabilities, attention::cast(c, v, type)});
  c.out(0, attention::cast(c, y, q->type().dtype));
}

}  // namespace

// Q[B, H, L, E], K[B, Hk, S, E], V[B, Hk, S, Ev] -> Y[B, H, L, Ev]; the modifiers map [B, H, L, S] to the same.
ORTMODULE_OP("ai.onnx.preview", FlexAttention, 1)
    .input("Q")
    .input("K")
    .input("V")
    .variadic_input("captured")
    .output("Y")
    .attr("score_mod", AttrKind::kGraph)
    .attr("prob_mod", AttrKind::kGraph)
    .attr("scale", AttrKind::kFloat)
    .attr("softmax_precision", AttrKind::kInt)
    .infer(infer_flex_attention)
    .grad({"Q", "K", "V", "captured"},
          [](GradContext& c) {
            ORTMODULE_INTERNAL(false, c.node().describe(), " reached the gradient; its body should have replaced it");
          })
    .body(flex_attention_body);

}  // namespace ortmodule
