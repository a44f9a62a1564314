// com.microsoft's GroupQueryAttention, as ONNX Runtime documents it: causal attention of few key heads with a cache,
// lengths per sequence and rotary positions. Its gradient runs it again.
//
// Not here: quantized caches, and past and present in one buffer (the present is a new tensor).
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

void infer(InferContext& c) {
  const int64_t heads = c.attr_int("num_heads", 0), kv = c.attr_int("kv_num_heads", 0);
  if (heads <= 0 || kv <= 0 || heads % kv != 0)
    c.error(str("num_heads ", heads, " should be a multiple of kv_num_heads ", kv, ", both positive"));
  const Shape* q = c.shape_of_rank(0, 3);
  std::optional<Shape> y, present;
  if (q) {
    Dim hidden = (*q)[2], size = Dim::floor_div(hidden, Dim(heads));
    if (!c.has(1)) {
      size = Dim::floor_div(hidden, Dim(heads + 2 * kv));
      hidden = size * Dim(heads);
    }
    y = Shape{(*q)[0], (*q)[1], hidden};
    present = Shape{(*q)[0], Dim(kv), c.fresh_dim(), size};
  }
  c.out(0, c.dtype(0), std::move(y));
  c.out(1, c.dtype(0), present);
  c.out(2, c.dtype(0), std::move(present));
}

}  // namespace

// query[B, S, N h], or query, key and value [B, S, (N + 2 K) h] in one; key[B, S, K h], value; past_key[B, K, P, h],
// past_value; seqlens_k[B], the last position of each sequence; total_sequence_length, the longest; cos_cache[M, r /
// 2], sin_cache; position_ids[B, S]; attention_bias broadcast to [B, N, S, T]; head_sink[N]
ORTMODULE_OP("com.microsoft", GroupQueryAttention, 1)
    .input("query")
    .optional_input("key")
    .optional_input("value")
    .optional_input("past_key")
    .optional_input("past_value")
    .input("seqlens_k")
    .input("total_sequence_length")
    .optional_input("cos_cache")
    .optional_input("sin_cache")
    .optional_input("position_ids")
    .optional_input("attention_bias")
    .optional_input("head_sink")
    .output("output")
    .output("present_key", Presence::kOptional)
    .output("present_value", Presence::kOptional)
    .required_attr("num_heads", AttrKind::kInt)
    .required_attr("kv_num_heads", AttrKind::kInt)
    .attr("do_rotary", AttrKind::kInt)
    .attr("local_window_size", AttrKind::kInt)
    .attr("rotary_interleaved", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .attr("smooth_softmax", AttrKind::kInt)
    .attr("softcap", AttrKind::kFloat)
    .infer(infer)
    .no_grad({"seqlens_k", "total_sequence_length", "position_ids"})
    .grad({"query", "key", "value", "past_key", "past_value", "cos_cache", "sin_cache", "attention_bias", "head_sink"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::GroupQueryAttentionGrad"); });
ORTMODULE_OP("ai.ortmodule", GroupQueryAttentionGrad, 1).apply(rerun_record);

}  // namespace ortmodule
