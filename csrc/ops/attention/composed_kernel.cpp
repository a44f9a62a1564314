#include "ops/attention/composed.h"

#include <ATen/ops/add.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/aten_bridge.h"

namespace ortmodule {
namespace {

// What hides keys, as two parts: where attention is allowed (bool), and what is added to the scores.
struct Bias {
  at::Tensor allowed, additive;

  void restrict_to(const at::Tensor& where) { allowed = allowed.defined() ? allowed.logical_and(where) : where; }

  // Both as one argument of PyTorch's function: a bool mask, an additive one, or none.
  std::optional<at::Tensor> mask(at::ScalarType type) const {
    if (!additive.defined() && !allowed.defined()) return std::nullopt;
    if (!additive.defined()) return allowed.dim() < 2 ? allowed.unsqueeze(0) : allowed;
    at::Tensor sum = additive.dim() < 2 ? additive.unsqueeze(0) : additive;
    sum = sum.to(type);
    // Not masked_fill, whose result has the first operand's sizes: here either may be the larger one.
    return allowed.defined() ? at::where(allowed, sum, at::Scalar(kHiddenScore)) : sum;
  }

  at::Tensor apply(at::Tensor scores) const {
    if (additive.defined()) scores = at::add(scores, additive.to(scores.scalar_type()));
    if (allowed.defined()) scores = scores.masked_fill(allowed.logical_not(), kHiddenScore);
    return scores;
  }
};

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t heads, const std::string& name) {
  ORTMODULE_CHECK(heads > 0 && x.dim() == 3 && x.size(2) % heads == 0, kRuntime, name, " ", x.sizes(),
                  " does not divide over ", heads, " heads");
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

at::Tensor repeat_key_heads(const at::Tensor& kv, int64_t group) {
  if (group == 1) return kv;
  return kv.unsqueeze(2)
      .expand({kv.size(0), kv.size(1), group, kv.size(2), kv.size(3)})
      .reshape({kv.size(0), kv.size(1) * group, kv.size(2), kv.size(3)});
}

at::Tensor safe_softmax(const at::Tensor& scores, std::optional<at::ScalarType> precision) {
  at::Tensor s = precision ? scores.to(*precision) : scores;
  if (s.size(-1) == 0) return s;
  const at::Tensor dead = at::amax(s.detach(), -1, true).eq(kHiddenScore);
  return at::softmax(s.masked_fill(dead, 0), -1).masked_fill(dead, 0).to(scores.scalar_type());
}

at::Tensor pad_mask(const at::Tensor& mask, int64_t keys) {
  if (mask.dim() == 0 || mask.size(-1) == 1 || mask.size(-1) >= keys) return mask;
  const bool is_bool = mask.scalar_type() == at::kBool;
  return at::constant_pad_nd(mask, {0, keys - mask.size(-1)}, is_bool ? at::Scalar(false) : at::Scalar(kHiddenScore));
}

AttentionForm::AttentionForm(const Node& node)
    : name("[" + node.op() + "] (" + node.describe() + ")"),
      causal(node.get_int("is_causal", 0) != 0),
      // A gradient node tells by the number of slots that its forward node had.
      shows_scores(node.find_attribute("forward_outputs") ? node.get_int("forward_outputs", 1) > 3
                                                          : node.output(3) != nullptr),
      softcap(node.get_float("softcap", 0)),
      q_heads(node.get_int("q_num_heads", 0)),
      kv_heads(node.get_int("kv_num_heads", 0)),
      qk_mode(node.get_int("qk_matmul_output_mode", 0)),
      left(node.get_int("left_window_size", -1)),
      right(node.get_int("right_window_size", -1)) {
  if (node.find_attribute("scale")) scale = node.get_float("scale", 1.0);
  if (const int64_t type = node.get_int("softmax_precision", 0)) precision = to_scalar_type(static_cast<DType>(type));
  ORTMODULE_CHECK_GRAPH(qk_mode >= 0 && qk_mode <= 3, name, " qk_matmul_output_mode should be 0 to 3, got ", qk_mode);
  ORTMODULE_CHECK_GRAPH(left >= -1 && right >= -1, name, " a window size is below -1");
}

std::vector<at::Tensor> AttentionForm::operator()(const std::vector<at::Tensor>& inputs) const {
  const auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : at::Tensor(); };
  at::Tensor q = input(0), k = input(1), v = input(2);
  at::Tensor mask = input(3);
  const at::Tensor past_key = input(4), past_value = input(5), lengths = input(6);
  const bool packed = q.dim() == 3;
  if (packed) {
    q = split_heads(q, q_heads, name);
    k = split_heads(k, kv_heads, name);
    v = split_heads(v, kv_heads, name);
  }
  ORTMODULE_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, kRuntime, name,
                  " Q, K and V should all have rank 3 or all rank 4");
  ORTMODULE_CHECK(past_key.defined() == past_value.defined(), kRuntime, name, " past_key and past_value go together");
  if (past_key.defined()) {
    ORTMODULE_CHECK(past_key.dim() == 4 && past_value.dim() == 4, kRuntime, name,
                    " past_key and past_value should have rank 4");
    k = at::cat({past_key, k}, 2);
    v = at::cat({past_value, v}, 2);
  }
  const at::Tensor present_key = k, present_value = v;
  const int64_t queries = q.size(2), keys = k.size(2);
  ORTMODULE_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0 && v.size(1) == k.size(1) && v.size(2) == keys &&
                      q.size(3) == k.size(3),
                  kRuntime, name, " Q ", q.sizes(), ", K ", k.sizes(), " and V ", v.sizes(), " do not fit");
  const int64_t group = q.size(1) / k.size(1);
  v = v.to(q.scalar_type());

  Bias bias;
  if (mask.defined()) {
    mask = pad_mask(mask, keys);
    if (mask.scalar_type() == at::kBool)
      bias.restrict_to(mask);
    else
      bias.additive = mask;
  }
  if (lengths.defined())
    ORTMODULE_CHECK(lengths.dim() == 1 && lengths.size(0) == q.size(0), kRuntime, name, " expected ", q.size(0),
                    " nonpad_kv_seqlen, got ", lengths.sizes());
  if (causal || left >= 0 || right >= 0) {
    // The position of query i is i + offset, the number of keys before the block.
    at::Tensor position = at::arange(queries, q.options().dtype(at::kLong)).unsqueeze(1);
    if (past_key.defined())
      position = position.add(past_key.size(2));
    else if (lengths.defined())
      position = position.add(lengths.sub(queries).view({-1, 1, 1, 1}));
    const at::Tensor distance = position.sub(at::arange(keys, position.options()));
    if (causal) bias.restrict_to(distance.ge(0));
    if (left >= 0) bias.restrict_to(distance.le(left));
    if (right >= 0) bias.restrict_to(distance.ge(-right));
  }
  if (lengths.defined()) bias.restrict_to(at::arange(keys, lengths.options()).lt(lengths.view({-1, 1, 1, 1})));

  const bool wider = precision && *precision == at::kDouble && q.scalar_type() != at::kDouble;
  // torch 2.11 divides by the number of heads.
  if (!shows_scores && softcap == 0 && !wider && q.size(1) > 0) {
    const at::Tensor y =
        at::scaled_dot_product_attention(q, k, v, bias.mask(q.scalar_type()), 0.0, false, scale, group != 1);
    return {packed ? merge_heads(y) : y, present_key, present_value};
  }
  k = repeat_key_heads(k, group);
  v = repeat_key_heads(v, group);
  const double root = std::sqrt(std::abs(scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))))));
  const double sign = scale.value_or(1.0) < 0 ? -1.0 : 1.0;
  at::Tensor scores = at::matmul(at::mul(q, sign * root), at::mul(k, root).transpose(-1, -2));
  at::Tensor shown = scores;
  if (softcap > 0) scores = at::mul(at::tanh(scores.div(softcap)), softcap);
  if (qk_mode == 1) shown = scores;
  scores = bias.apply(scores);
  if (qk_mode == 2) shown = scores;
  const at::Tensor probabilities = safe_softmax(scores, precision);
  if (qk_mode == 3) shown = probabilities;
  at::Tensor y = at::matmul(probabilities, v);
  return {packed ? merge_heads(y) : y, present_key, present_value, shown};
}

}  // namespace ortmodule
