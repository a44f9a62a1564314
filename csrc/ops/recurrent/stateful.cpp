// LinearAttention and CausalConvWithState: layers that carry a state from call to call. Their gradients run them again.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

void infer_linear_attention(InferContext& c) {
  const int64_t q_heads = c.attr_int("q_num_heads", 0), kv_heads = c.attr_int("kv_num_heads", 0);
  if (q_heads <= 0 || kv_heads <= 0 || q_heads % kv_heads != 0)
    c.error(str("q_num_heads (", q_heads, ") should be a positive multiple of kv_num_heads (", kv_heads, ")"));
  const std::string rule = c.node().get_string("update_rule", "gated_delta");
  const bool gated = rule == "gated" || rule == "gated_delta", delta = rule == "delta" || rule == "gated_delta";
  if (!gated && !delta && rule != "linear")
    c.error("update_rule should be 'linear', 'gated', 'delta' or 'gated_delta', got '" + rule + "'");
  if (c.has(4) != gated) c.error("update_rule '" + rule + (gated ? "' needs" : "' takes no") + " decay");
  if (c.has(5) != delta) c.error("update_rule '" + rule + (delta ? "' needs" : "' takes no") + " beta");
  const Shape *q = c.shape_of_rank(0, 3), *k = c.shape_of_rank(1, 3), *v = c.shape_of_rank(2, 3);
  const auto per_head = [&](const Dim& size, int64_t heads) {
    if (size.is_known() && size.value() % heads != 0)
      c.error(str(size.value(), " features do not divide over ", heads, " heads"));
    return Dim::floor_div(size, Dim(heads));
  };
  std::optional<Shape> out, state;
  if (q && v) out = Shape{(*q)[0], (*q)[1], per_head((*v)[2], kv_heads) * Dim(q_heads)};
  if (k && v) state = Shape{(*k)[0], Dim(kv_heads), per_head((*k)[2], kv_heads), per_head((*v)[2], kv_heads)};
  c.out(0, c.dtype(0), std::move(out));
  c.out(1, c.has(3) ? c.dtype(3) : c.dtype(0), std::move(state));
}

void infer_causal_conv(InferContext& c) {
  const std::string activation = c.node().get_string("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish")
    c.error("activation should be 'none', 'silu' or 'swish', got '" + activation + "'");
  const Shape *x = c.shape_of_rank(0, 3), *w = c.shape_of_rank(1, 3);
  c.same_as(0, 0);
  std::optional<Shape> state;
  if (x && w) {
    if ((*w)[2].is_known() && (*w)[2].value() < 1) c.error("the kernel is empty");
    state = Shape{(*x)[0], (*x)[1], (*w)[2] - Dim(1)};
  }
  c.out(1, c.dtype(0), std::move(state));
}

}  // namespace

// query[B, T, Hq*dk], key[B, T, H*dk], value[B, T, H*dv], past_state[B, H, dk, dv], decay[B, T, H or H*dk],
// beta[B, T, H or 1] -> output[B, T, Hq*dv], present_state
ORTMODULE_OP("", LinearAttention, 27)
    .input("query")
    .input("key")
    .input("value")
    .optional_input("past_state")
    .optional_input("decay")
    .optional_input("beta")
    .output("output")
    .output("present_state", Presence::kOptional)
    .attr("chunk_size", AttrKind::kInt)
    .required_attr("kv_num_heads", AttrKind::kInt)
    .required_attr("q_num_heads", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .attr("update_rule", AttrKind::kString)
    .infer(infer_linear_attention)
    .grad({"query", "key", "value", "past_state", "decay", "beta"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::LinearAttentionGrad"); });
ORTMODULE_OP("ai.ortmodule", LinearAttentionGrad, 1).apply(rerun_record);

// input[B, C, L], weight[C, 1, k], bias[C], past_state[B, C, k - 1] -> output[B, C, L], present_state
ORTMODULE_OP("", CausalConvWithState, 27)
    .input("input")
    .input("weight")
    .optional_input("bias")
    .optional_input("past_state")
    .output("output")
    .output("present_state", Presence::kOptional)
    .attr("activation", AttrKind::kString)
    .infer(infer_causal_conv)
    .grad({"input", "weight", "bias", "past_state"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::CausalConvWithStateGrad"); });
ORTMODULE_OP("ai.ortmodule", CausalConvWithStateGrad, 1).apply(rerun_record);

}  // namespace ortmodule
