// com.microsoft's Attention and MultiHeadAttention, as ONNX Runtime documents them; their gradients run them again.
//
// Not here: packed query/key/value in one 5-D input, buffers for past and present that are shared, beam search inputs.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

void attributes(OpRecord& r) {
  r.required_attr("num_heads", AttrKind::kInt)
      .attr("mask_filter_value", AttrKind::kFloat)
      .attr("scale", AttrKind::kFloat)
      .attr("unidirectional", AttrKind::kInt);
}

int64_t heads_of(InferContext& c) {
  const int64_t heads = c.attr_int("num_heads", 0);
  if (heads <= 0) c.error(str("num_heads should be positive, got ", heads));
  return heads;
}

void infer_multi_head(InferContext& c) {
  const int64_t heads = heads_of(c);
  const Shape *q = c.shape_of_rank(0, 3), *v = c.shape(2);
  std::optional<Shape> y;
  if (q && v && (v->size() == 3 || v->size() == 4))
    y = Shape{(*q)[0], (*q)[1], v->size() == 3 ? (*v)[2] : (*v)[3] * Dim(heads)};
  c.out(0, c.dtype(0), std::move(y));
  const Shape present = c.fresh_shape(8);  // a value's head size may be another than a key's
  c.out(1, c.dtype(0), Shape(present.begin(), present.begin() + 4));
  c.out(2, c.dtype(0), Shape(present.begin() + 4, present.end()));
}

void infer_self_attention(InferContext& c) {
  heads_of(c);
  const Shape *x = c.shape_of_rank(0, 3), *w = c.shape_of_rank(1, 2);
  const auto sizes = c.node().get_ints("qkv_hidden_sizes");
  if (!sizes.empty() && sizes.size() != 3) c.error("qkv_hidden_sizes should hold three numbers");
  std::optional<Shape> y;
  if (x && w) y = Shape{(*x)[0], (*x)[1], sizes.empty() ? Dim::floor_div((*w)[1], Dim(3)) : Dim(sizes[2])};
  c.out(0, c.dtype(0), std::move(y));
  c.out(1, c.dtype(0), c.fresh_shape(5));
}

}  // namespace

// query[B, S, H], key[B, L, H] or [B, N, L, h], value alike, bias[3 H], key_padding_mask[B], [B, L] or [B, S, L],
// attention_bias broadcast to [B, N, S, T], past_key[B, N, P, h], past_value
ORTMODULE_OP("com.microsoft", MultiHeadAttention, 1)
    .input("query")
    .input("key")
    .input("value")
    .optional_input("bias")
    .optional_input("key_padding_mask")
    .optional_input("attention_bias")
    .optional_input("past_key")
    .optional_input("past_value")
    .output("output")
    .output("present_key", Presence::kOptional)
    .output("present_value", Presence::kOptional)
    .apply(attributes)
    .infer(infer_multi_head)
    .no_grad({"key_padding_mask"})
    .grad({"query", "key", "value", "bias", "attention_bias", "past_key", "past_value"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::MultiHeadAttentionGrad"); });
ORTMODULE_OP("ai.ortmodule", MultiHeadAttentionGrad, 1).apply(rerun_record);

// input[B, S, D], weights[D, 3 H], bias[3 H], mask_index[B], [B, T] or [B, S, T], past[2, B, N, P, h],
// attention_bias -> output[B, S, Hv], present[2, B, N, T, h]
ORTMODULE_OP("com.microsoft", Attention, 1)
    .input("input")
    .input("weights")
    .optional_input("bias")
    .optional_input("mask_index")
    .optional_input("past")
    .optional_input("attention_bias")
    .output("output")
    .output("present", Presence::kOptional)
    .apply(attributes)
    .attr("qkv_hidden_sizes", AttrKind::kInts)
    .infer(infer_self_attention)
    .no_grad({"mask_index"})
    .grad({"input", "weights", "bias", "past", "attention_bias"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::ContribAttentionGrad"); });
ORTMODULE_OP("ai.ortmodule", ContribAttentionGrad, 1).apply(rerun_record);

}  // namespace ortmodule
