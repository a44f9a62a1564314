// ATen kernels of LinearAttention, token by token with the state in float, and of CausalConvWithState.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

// S <- exp(g) S; u = beta (v - S^T k) or v; S <- S + k u^T; o = scale q^T S
TensorFunction linear_attention(const Node& node) {
  const std::string rule = node.get_string("update_rule", "gated_delta"), name = node.describe();
  const bool gated = rule == "gated" || rule == "gated_delta", delta = rule == "delta" || rule == "gated_delta";
  const int64_t q_heads = node.get_int("q_num_heads", 1), heads = node.get_int("kv_num_heads", 1);
  const double given_scale = node.get_float("scale", 0);
  return [=](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto input = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    const at::ScalarType type = in[0].scalar_type();
    const at::ScalarType wide = computed_in(type);
    // [B, T, H*D] -> [B, H, T, D]
    const auto unpack = [&](const at::Tensor& x, int64_t h) {
      ORTMODULE_CHECK(x.dim() == 3 && x.size(0) == in[0].size(0) && x.size(1) == in[0].size(1) && x.size(2) % h == 0,
                      kRuntime, "[LinearAttention] ", x.sizes(), " does not fit a query of ", in[0].sizes(), " and ", h,
                      " heads (", name, ")");
      return x.to(wide).reshape({x.size(0), x.size(1), h, x.size(2) / h}).transpose(1, 2);
    };
    const at::Tensor q = unpack(in[0], q_heads), k = unpack(in[1], heads), v = unpack(in[2], heads);
    const at::Tensor decay = gated ? unpack(input(4), heads) : at::Tensor();
    const at::Tensor beta = delta ? unpack(input(5), input(5).size(-1) == 1 ? 1 : heads) : at::Tensor();
    const int64_t batch = q.size(0), steps = q.size(2), size = k.size(3), width = v.size(3);
    ORTMODULE_CHECK(
        q.size(3) == size && (!gated || decay.size(3) == 1 || decay.size(3) == size) && (!delta || beta.size(3) == 1),
        kRuntime, "[LinearAttention] the head sizes do not fit (", name, ")");
    const double scale = given_scale != 0 ? given_scale : 1.0 / std::sqrt(static_cast<double>(size));
    const at::Tensor past = input(3);
    const std::vector<int64_t> state_sizes{batch, heads, size, width};
    ORTMODULE_CHECK(!past.defined() || past.sizes() == at::IntArrayRef(state_sizes), kRuntime,
                    "[LinearAttention] past_state has shape ", past.sizes(), ", expected ",
                    at::IntArrayRef(state_sizes), " (", name, ")");
    at::Tensor state = past.defined() ? past.to(wide) : at::zeros(state_sizes, q.options());
    std::vector<at::Tensor> outputs;
    for (int64_t t = 0; t < steps; ++t) {
      const at::Tensor key = k.select(2, t).unsqueeze(-1);
      at::Tensor update = v.select(2, t).unsqueeze(-2);
      if (gated) state = at::mul(state, at::exp(decay.select(2, t)).unsqueeze(-1));
      if (delta)
        update = at::mul(at::sub(update, at::matmul(key.transpose(-1, -2), state)), beta.select(2, t).unsqueeze(-1));
      state = at::add(state, at::mul(key, update));
      // Query heads that share a state: [B, H, group, dk] times [B, H, dk, dv].
      const at::Tensor query = q.select(2, t).reshape({batch, heads, q_heads / heads, size});
      outputs.push_back(at::matmul(query, state).reshape({batch, q_heads * width}));
    }
    const at::Tensor y =
        steps ? at::mul(at::stack(outputs, 1), scale) : at::zeros({batch, 0, q_heads * width}, q.options());
    return {y.to(type), state.to(past.defined() ? past.scalar_type() : type)};
  };
}

TensorFunction causal_conv(const Node& node) {
  const bool silu = node.get_string("activation", "none") != "none";
  return [silu, name = node.describe()](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto input = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    const at::Tensor &x = in[0], &w = in[1], past = input(3), bias = input(2);
    ORTMODULE_CHECK(x.dim() == 3 && w.dim() == 3 && w.size(0) == x.size(1) && w.size(1) == 1 && w.size(2) > 0, kRuntime,
                    "[CausalConvWithState] input ", x.sizes(), " and weight ", w.sizes(), " do not fit (", name, ")");
    const std::vector<int64_t> sizes{x.size(0), x.size(1), w.size(2) - 1};
    ORTMODULE_CHECK(!past.defined() || past.sizes() == at::IntArrayRef(sizes), kRuntime,
                    "[CausalConvWithState] past_state has shape ", past.sizes(), ", expected ", at::IntArrayRef(sizes),
                    " (", name, ")");
    const at::Tensor padded = at::cat({past.defined() ? past : at::zeros(sizes, x.options()), x}, 2);
    at::Tensor y = padded.size(2) < w.size(2) ? at::zeros_like(x)
                                              : at::conv1d(padded, w, bias, 1, at::IntArrayRef{0}, 1, x.size(1));
    if (silu) y = at::silu(y);
    return {y, padded.narrow(2, padded.size(2) - sizes[2], sizes[2])};
  };
}

}  // namespace

ORTMODULE_KERNEL("", LinearAttention, "aten", function_kernel_of<linear_attention>);
ORTMODULE_KERNEL("ai.ortmodule", LinearAttentionGrad, "aten", rerun_kernel_of<linear_attention>);
ORTMODULE_KERNEL("", CausalConvWithState, "aten", function_kernel_of<causal_conv>);
ORTMODULE_KERNEL("ai.ortmodule", CausalConvWithStateGrad, "aten", rerun_kernel_of<causal_conv>);

}  // namespace ortmodule
