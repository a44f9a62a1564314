// Kernels of com.microsoft's Attention and MultiHeadAttention, composed of ATen operators.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/rerun_kernel.h"
#include "ops/attention/composed.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

struct ContribForm {
  explicit ContribForm(const Node& node)
      : name("[" + node.op() + "] (" + node.describe() + ")"),
        heads(node.get_int("num_heads", 0)),
        scale(node.get_float("scale", 0)),
        fill(node.get_float("mask_filter_value", -10000)),
        causal(node.get_int("unidirectional", 0) != 0),
        hidden_sizes(node.get_ints("qkv_hidden_sizes")) {}

  // [B, S, N h], from heads [B, N, ., h]; `offset` keys precede the first query.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                    const at::Tensor& bias, int64_t offset) const {
    ORTMODULE_CHECK(k.size(1) == heads && v.size(1) == heads && k.size(3) == q.size(3) && v.size(2) == k.size(2),
                    kRuntime, name, " query, key and value heads of ", q.sizes(), ", ", k.sizes(), ", ", v.sizes(),
                    " do not fit");
    const int64_t keys = k.size(2);
    const double factor = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
    at::Tensor scores = at::mul(at::matmul(q, k.transpose(-1, -2)), factor);
    if (bias.defined()) scores = at::add(scores, bias);
    if (mask.defined()) {
      const at::Tensor hidden = visible(mask, q.size(0), keys).logical_not();
      scores = at::add(scores, at::mul(hidden.to(scores.scalar_type()), fill));
    }
    if (causal) {
      const at::Tensor key = at::arange(keys, q.options().dtype(at::kLong));
      const at::Tensor query = at::arange(offset, offset + q.size(2), key.options()).unsqueeze(1);
      scores = scores.masked_fill(key.gt(query), -std::numeric_limits<double>::infinity());
    }
    return merge_heads(at::matmul(safe_softmax(scores, std::nullopt), v));
  }

  // Which keys a row may see, broadcast to [B, N, S, T]: lengths [B], or ones in [B, T] or [B, S, T].
  at::Tensor visible(const at::Tensor& mask, int64_t batch, int64_t keys) const {
    if (mask.dim() == 1 && mask.size(0) == batch) return at::arange(keys, mask.options()).lt(mask.view({-1, 1, 1, 1}));
    ORTMODULE_CHECK((mask.dim() == 2 || mask.dim() == 3) && mask.size(-1) == keys, kUnsupported, name,
                    " a mask of shape ", mask.sizes(), " for ", keys, " keys is not supported");
    return (mask.dim() == 2 ? mask.unsqueeze(1) : mask).unsqueeze(1).ne(0);
  }

  Tensors multi_head(const Tensors& in) const {
    const auto input = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    at::Tensor q = in[0], k = in[1], v = in[2];
    if (const at::Tensor bias = input(3); bias.defined()) {
      ORTMODULE_CHECK(k.dim() == 3 && bias.dim() == 1 && bias.size(0) == q.size(2) + k.size(2) + v.size(2), kRuntime,
                      name, " a bias of ", bias.sizes(), " does not fit");
      q = at::add(q, bias.narrow(0, 0, q.size(2)));
      k = at::add(k, bias.narrow(0, q.size(2), k.size(2)));
      v = at::add(v, bias.narrow(0, q.size(2) + k.size(2), v.size(2)));
    }
    q = split_heads(q, heads, name);
    if (k.dim() == 3) k = split_heads(k, heads, name);
    if (v.dim() == 3) v = split_heads(v, heads, name);
    ORTMODULE_CHECK(k.dim() == 4 && v.dim() == 4 && input(6).defined() == input(7).defined(), kRuntime, name,
                    " key and value should have rank 3 or 4, and past_key comes with past_value");
    const int64_t past = input(6).defined() ? input(6).size(2) : 0;
    if (input(6).defined()) {
      k = at::cat({input(6), k}, 2);
      v = at::cat({input(7), v}, 2);
    }
    return {attend(q, k, v, input(4), input(5), past), k, v};
  }

  Tensors self(const Tensors& in) const {
    const auto input = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    ORTMODULE_CHECK(in[0].dim() == 3 && in[1].dim() == 2, kRuntime, name, " input should have rank 3, weights rank 2");
    at::Tensor projected = at::matmul(in[0], in[1]);
    if (input(2).defined()) projected = at::add(projected, input(2));
    const int64_t third = projected.size(2) / 3;
    const std::vector<int64_t> sizes = hidden_sizes.empty() ? std::vector<int64_t>{third, third, third} : hidden_sizes;
    const auto parts = projected.split_with_sizes(sizes, 2);
    const at::Tensor q = split_heads(parts[0], heads, name);
    at::Tensor k = split_heads(parts[1], heads, name), v = split_heads(parts[2], heads, name);
    const at::Tensor past = input(4);
    if (past.defined()) {
      ORTMODULE_CHECK(past.dim() == 5 && past.size(0) == 2, kRuntime, name, " past has shape ", past.sizes());
      k = at::cat({past[0], k}, 2);
      v = at::cat({past[1], v}, 2);
    }
    const at::Tensor present = k.sizes() == v.sizes() ? at::stack({k, v}, 0) : at::Tensor();
    return {attend(q, k, v, input(3), input(5), past.defined() ? past.size(3) : 0), present};
  }

  std::string name;
  int64_t heads;
  double scale, fill;
  bool causal;
  std::vector<int64_t> hidden_sizes;
};

TensorFunction multi_head(const Node& node) {
  return [form = ContribForm(node)](const Tensors& in) { return form.multi_head(in); };
}
TensorFunction self_attention(const Node& node) {
  return [form = ContribForm(node)](const Tensors& in) { return form.self(in); };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", MultiHeadAttention, "aten", function_kernel_of<multi_head>);
ORTMODULE_KERNEL("ai.ortmodule", MultiHeadAttentionGrad, "aten", rerun_kernel_of<multi_head>);
ORTMODULE_KERNEL("com.microsoft", Attention, "aten", function_kernel_of<self_attention>);
ORTMODULE_KERNEL("ai.ortmodule", ContribAttentionGrad, "aten", rerun_kernel_of<self_attention>);

}  // namespace ortmodule
