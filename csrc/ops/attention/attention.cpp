// Attention: softmax(q k^T * scale + mask) v, and AttentionDropout, the same with dropout on the probabilities.
//
// ATen's fused kernels run what is plain (form.h): q, k, v of rank 4, perhaps a mask, and Y alone. The standard's other
// variants (rank 3, caches, softcap, windows, the scores as an output) run composed, and so does their gradient.
//
// Both are one node while a fused kernel can run them: our tiled one on the CPU (flash.h), elsewhere ATen's. Dropout in
// training is PhiloxAttention, also one node, unless it has to draw as eager does: then the body written here takes
// over, plain operators in the order and with the roundings of PyTorch's _scaled_dot_product_attention_math, so that
// results and random draws are eager's.
#include <cmath>
#include <limits>

#include "base/status.h"
#include "ops/attention/body_parts.h"
#include "ops/attention/slots.h"
#include "records/attention_form.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

using namespace attention;

// [batch, heads, seq, size], whether the input has rank 4 or is [batch, seq, heads * size].
struct Heads {
  Dim batch, heads, length, size;
};

std::optional<Heads> heads_of(InferContext& c, size_t i, const char* heads_attribute) {
  const Shape* x = c.shape(i);
  if (!x) return std::nullopt;
  if (x->size() == 4) return Heads{(*x)[0], (*x)[1], (*x)[2], (*x)[3]};
  if (x->size() != 3 || c.node().op() != "Attention") c.error(str("expected rank 4, got ", x->size()));
  const int64_t heads = c.attr_int(heads_attribute, 0);
  if (heads <= 0) c.error(str("inputs of rank 3 need the attribute ", heads_attribute));
  if ((*x)[2].is_known() && (*x)[2].value() % heads != 0)
    c.error(str((*x)[2].value(), " features do not divide over ", heads, " heads"));
  return Heads{(*x)[0], Dim(heads), (*x)[1], Dim::floor_div((*x)[2], Dim(heads))};
}

void infer_attention(InferContext& c) {
  const bool standard = c.node().op() == "Attention";
  const auto q = heads_of(c, kQuery, "q_num_heads"), k = heads_of(c, kKey, "kv_num_heads"),
             v = heads_of(c, kValue, "kv_num_heads");
  if (q && k) {
    const Dim &hq = q->heads, &hk = k->heads;
    if (hq.is_known() && hk.is_known() && (hk.value() == 0 || hq.value() % hk.value() != 0))
      c.error(str(hq.value(), " query heads do not divide over ", hk.value(), " key heads"));
    if (q->size.is_known() && k->size.is_known() && q->size != k->size)
      c.error(str("q has head size ", q->size.text(), ", k has ", k->size.text()));
  }
  std::optional<Shape> y, lse, present_key, present_value, scores;
  if (q) {
    const Dim size = v ? v->size : q->size;
    y = c.shape(kQuery)->size() == 3 ? Shape{q->batch, q->length, q->heads * size}
                                     : Shape{q->batch, q->heads, q->length, size};
    lse = Shape{q->batch, q->heads, q->length};
  }
  if (standard && k && v) {
    Dim keys = k->length;
    if (c.has(kPastKey)) {
      const Shape* past = c.shape_of_rank(kPastKey, 4);
      keys = past ? keys + (*past)[2] : c.fresh_shape(4)[3];  // the first three are lse's
    }
    present_key = Shape{k->batch, k->heads, keys, k->size};
    present_value = Shape{v->batch, v->heads, keys, v->size};
    if (q) scores = Shape{q->batch, q->heads, q->length, keys};
  }
  c.out(0, c.dtype(kQuery), std::move(y));
  if (c.node().op() == "PhiloxAttention")
    c.out(kPhiloxLse, DType::kFloat, c.fresh_shape(3));  // empty after a run on the unfused path, as Attention's
  if (!standard) return;
  c.out(kPresentKey, c.dtype(kKey), std::move(present_key));
  c.out(kPresentValue, c.dtype(kValue), std::move(present_value));
  c.out(kScores, c.dtype(kQuery), std::move(scores));
  // A run that takes the unfused path leaves an empty tensor here: the rank is all that holds for both.
  c.out(kLse, is_reduced_floating(c.dtype(kQuery)) ? DType::kFloat : c.dtype(kQuery), c.fresh_shape(3));
}

Attributes attention_attributes(const Node& node) {
  Attributes out{{"is_causal", node.get_int("is_causal", 0)}};
  if (node.find_attribute("scale")) out["scale"] = node.get_float("scale", 1.0);
  return out;
}

void attention_gradient(GradContext& c) {
  if (!plain_attention(c.node())) return rerun_gradient(c, "ai.ortmodule::ComposedAttentionGrad");
  const auto grads = c.emit_some("ai.ortmodule::AttentionGrad",
                                 {c.GO(0), c.I(kQuery), c.I(kKey), c.I(kValue), c.O(0), c.saved("lse"), c.I(kMask)},
                                 {c.needs(0), c.needs(1), c.needs(2), c.needs(3)}, attention_attributes(c.node()));
  for (size_t i = 0; i < 4; ++i) c.GI(i, grads[i]);
}

void philox_attention_gradient(GradContext& c) {
  Attributes attributes = attention_attributes(c.node());
  attributes["stream"] = c.node().get_int("stream", 0);
  const auto grads = c.emit_some("ai.ortmodule::AttentionGrad",
                                 {c.GO(0), c.I(kQuery), c.I(kKey), c.I(kValue), c.O(0), c.saved("lse"), c.I(kMask),
                                  c.I(kRatio), c.I(kRandomState)},
                                 {c.needs(0), c.needs(1), c.needs(2), c.needs(3)}, std::move(attributes));
  for (size_t i = 0; i < 4; ++i) c.GI(i, grads[i]);
}

void infer_attention_grad(InferContext& c) {
  for (size_t i = 0; i < 3; ++i) c.same_as(i, kGradQuery + i);
  if (c.has(kGradMask)) c.same_as(kMaskGrad, kGradMask);
}

// -- the body --------------------------------------------------------------------------------------------------------

// 0 where a query may see a key, -inf above the diagonal.
NodeArg* causal_mask(BodyContext& c, NodeArg* q, NodeArg* k) {
  NodeArg* sizes = c.emit("Concat", {length(c, q, 2), length(c, k, 2)}, {{"axis", int64_t{0}}});
  NodeArg* full = c.emit("Expand", {c.scalar(-std::numeric_limits<double>::infinity(), q), sizes});
  return c.emit("Trilu", {full, c.scalar_int(1)}, {{"upper", int64_t{1}}});
}

double lowest(DType dtype) {
  switch (dtype) {
    case DType::kDouble:
      return std::numeric_limits<double>::lowest();
    case DType::kFloat16:
      return -65504.0;
    case DType::kBFloat16:
      return -3.3895313892515355e38;
    default:
      return std::numeric_limits<float>::lowest();
  }
}

struct Probabilities {
  NodeArg *q, *k, *v;      // in the type that is computed in; k and v with one head per query head
  NodeArg* root;           // of the scale, which multiplies q and k
  NodeArg* probabilities;  // softmax of the masked scores
  NodeArg* dead_rows;      // bool, null without a mask: rows whose keys are all masked
};

// A row whose keys are all masked gives zeros, as _safe_softmax does. Instead of a look at every score, the mask's -inf
// becomes the lowest number (its exponential is zero all the same, and nothing becomes NaN), and the rows that are
// masked whole are cut out of y, whose gradient is zero there by the same Where.
Probabilities attention_probabilities(BodyContext& c, NodeArg* q, NodeArg* k, NodeArg* v, NodeArg* mask) {
  Node& node = c.node();
  const DType dtype = q->type().dtype;
  // ATen computes 16-bit inputs in float and rounds the result once.
  const DType compute = is_reduced_floating(dtype) ? DType::kFloat : dtype;
  q = cast(c, q, compute);
  k = repeat_heads(c, cast(c, k, compute), q);
  v = repeat_heads(c, cast(c, v, compute), q);

  NodeArg* root = root_of_scale(c, q);
  NodeArg* scores = scaled_scores(c, q, k, root);
  if (node.get_int("is_causal", 0) != 0) scores = c.emit("Add", {scores, causal_mask(c, q, k)});
  NodeArg* dead_rows = nullptr;
  if (mask) {
    NodeArg* minus_infinity = c.scalar(-std::numeric_limits<double>::infinity(), q);
    if (mask->type().dtype == DType::kBool)
      mask = c.emit("Where", {mask, c.scalar(0, q), minus_infinity});
    else
      mask = cast(c, mask, compute);
    NodeArg* largest = c.emit("ReduceMax", {mask, c.ints({-1})}, {{"keepdims", int64_t{1}}});
    dead_rows = c.emit("Equal", {largest, minus_infinity});
    scores = c.emit("Add", {scores, c.emit("Max", {mask, c.scalar(lowest(compute), mask)})});
  }
  return {q, k, v, root, c.emit("Softmax", {scores}, {{"axis", int64_t{-1}}}), dead_rows};
}

void attention_body(BodyContext& c, NodeArg* ratio) {
  Node& node = c.node();
  ORTMODULE_CHECK(
      ratio || plain_attention(node), kUnsupported, node.describe(),
      " has no form in plain operators: it has inputs of rank 3, a cache, a softcap, a window or more outputs");
  const Probabilities p = attention_probabilities(c, c.in(kQuery), c.in(kKey), c.in(kValue), c.in(kMask));
  NodeArg* probabilities = p.probabilities;
  if (ratio)
    probabilities =
        c.emit("Dropout", {probabilities, ratio, node.graph().constant(TensorData::scalar(DType::kBool, 1))});
  NodeArg* y = c.emit("MatMul", {probabilities, p.v});
  if (p.dead_rows) y = c.emit("Where", {p.dead_rows, c.scalar(0, y), y});
  c.out(0, cast(c, y, c.in(kQuery)->type().dtype));
}

// Sums the query heads that one key head serves.
NodeArg* sum_heads(BodyFormula& f, NodeArg* d, NodeArg* kv) {
  const auto &have = d->type().shape, &want = kv->type().shape;
  if (have && want && (*have)[1] == (*want)[1]) return d;
  NodeArg* grouped = f.reshape(d, f.concat({f.c.ints({0}), f.shape(kv, 1, 2), f.c.ints({-1}), f.shape(d, 2)}));
  return f.sum(grouped, {2}, false);
}

// Computes the probabilities again. Written-out mathematics: dS = P * (dP - sum(dP * P)).
void attention_grad_body(BodyContext& c) {
  if (c.in(kGradRatio)) return;  // dropout by a counter: the standard has no operator that draws as it does
  BodyFormula f(c);
  NodeArg *query = c.in(kGradQuery), *key = c.in(kGradKey), *value = c.in(kGradValue), *mask = c.in(kGradMask);
  const Probabilities p = attention_probabilities(c, query, key, value, mask);
  NodeArg* dy = f.cast(c.in(0), p.q->type().dtype);
  if (p.dead_rows) dy = f.where(p.dead_rows, c.scalar(0, dy), dy);
  const auto out = [&](size_t i, NodeArg* d, NodeArg* like) { c.out(i, f.cast(d, like->type().dtype)); };
  if (c.wants(2)) out(2, sum_heads(f, f.matmul(f.matrix_transpose(p.probabilities), dy), value), value);
  NodeArg* dp = f.matmul(dy, f.matrix_transpose(p.v));
  NodeArg* ds = f.mul(p.probabilities, f.sub(dp, f.sum(f.mul(dp, p.probabilities), {-1})));
  if (c.wants(3) && mask && mask->type().dtype != DType::kBool) out(3, f.sum_to(ds, mask), mask);
  NodeArg* scale = f.mul(p.root, p.root);
  if (c.node().get_float("scale", 1.0) < 0) scale = f.unary("Neg", scale);
  NodeArg* scaled = f.mul(ds, scale);
  if (c.wants(0)) out(0, f.matmul(scaled, p.k), query);
  if (c.wants(1)) out(1, sum_heads(f, f.matmul(f.matrix_transpose(scaled), p.q), key), key);
}

// Two products of [L, S] per head.
double attention_flops(const Node& node, const SizeOf& size) {
  const Shape &q = *node.input(0)->type().shape, &k = *node.input(1)->type().shape;
  return 4 * count_elements(q, size) * size(k[k.size() - 2]);
}

// The scores once more, and a product for each of dP, dQ, dK and dV.
double attention_grad_flops(const Node& node, const SizeOf& size) {
  const Shape &q = *node.input(kGradQuery)->type().shape, &k = *node.input(kGradKey)->type().shape;
  return 10 * count_elements(q, size) * size(k[k.size() - 2]);
}

}  // namespace

// q[B, H, L, E], k[B, Hk, S, E], v[B, Hk, S, Ev], mask broadcast to [B, H, L, S] -> Y[B, H, L, Ev], lse[B, H, L]
ORTMODULE_OP("", Attention, 23)
    .input("Q")
    .input("K")
    .input("V")
    .optional_input("attn_mask")
    .optional_input("past_key")
    .optional_input("past_value")
    .optional_input("nonpad_kv_seqlen")
    .output("Y")
    .output("present_key", Presence::kOptional)
    .output("present_value", Presence::kOptional)
    .output("qk_matmul_output", Presence::kOptional)
    .saved("lse")
    .attr("is_causal", AttrKind::kInt)
    .attr("kv_num_heads", AttrKind::kInt)
    .attr("left_window_size", AttrKind::kInt)
    .attr("q_num_heads", AttrKind::kInt)
    .attr("qk_matmul_output_mode", AttrKind::kInt)
    .attr("right_window_size", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .attr("softcap", AttrKind::kFloat)
    .attr("softmax_precision", AttrKind::kInt)
    .infer(infer_attention)
    .grad({"Q", "K", "V", "attn_mask", "past_key", "past_value"}, attention_gradient)
    .no_grad({"nonpad_kv_seqlen"})
    .body([](BodyContext& c) { attention_body(c, nullptr); })
    .flops(attention_flops);

ORTMODULE_OP("ai.ortmodule", ComposedAttentionGrad, 1).apply(rerun_record);

// Of Attention and, with ratio and state, of PhiloxAttention.
ORTMODULE_OP("ai.ortmodule", AttentionGrad, 1)
    .input("dY")
    .input("Q")
    .input("K")
    .input("V")
    .input("Y")
    .input("lse")
    .optional_input("attn_mask")
    .host_input("ratio", Presence::kOptional)
    .host_input("state", Presence::kOptional)
    .output("dQ", Presence::kOptional)
    .output("dK", Presence::kOptional)
    .output("dV", Presence::kOptional)
    .output("dMask", Presence::kOptional)
    .attr("is_causal", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .attr("stream", AttrKind::kInt)
    .infer(infer_attention_grad)
    .not_differentiable()
    .body(attention_grad_body)
    .flops(attention_grad_flops);

// As Attention, with dropout of `ratio` on the probabilities.
ORTMODULE_OP("ai.ortmodule", AttentionDropout, 1)
    .input("q")
    .input("k")
    .input("v")
    .optional_input("mask")
    .host_input("ratio")
    .output("y")
    .attr("is_causal", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .traits(kRandom)
    .infer(infer_attention)
    .grad({"q", "k", "v", "mask"},
          [](GradContext& c) {
            ORTMODULE_INTERNAL(false, c.node().describe(), " reached the gradient; its body should have replaced it");
          })
    .body([](BodyContext& c) { attention_body(c, c.in(kRatio)); });

// AttentionDropout as training runs it by default: one node forward and one backward, which finds the dropped
// probabilities again from state and stream (Note [Random state]).
ORTMODULE_OP("ai.ortmodule", PhiloxAttention, 1)
    .input("q")
    .input("k")
    .input("v")
    .optional_input("mask")
    .host_input("ratio")
    .host_input("state")
    .output("y")
    .saved("lse")
    .attr("is_causal", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .attr("stream", AttrKind::kInt)
    .infer(infer_attention)
    .grad({"q", "k", "v", "mask"}, philox_attention_gradient)
    .body([](BodyContext& c) { attention_body(c, c.in(kRatio)); })
    .flops(attention_flops);

}  // namespace ortmodule
