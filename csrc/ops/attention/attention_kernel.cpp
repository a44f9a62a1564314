// Kernels of Attention, AttentionGrad, AttentionDropout and PhiloxAttention.
//
// "cpu": our tiled kernels (flash.h), and what follows where they do not apply. "aten": ATen's flash kernel on the CPU
// and its backward where ATen's own rule allows them; else forward is PyTorch's function, and backward runs it again
// under autograd: one more forward, and the device's fused backward.
// Keys and values of the past are put before the new ones first. Any other node that is not plain (form.h) is composed
// of ATen operators, its gradient by a second forward too.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/autograd_scope.h"
#include "kernels/kernel_context.h"
#include "kernels/philox_state.h"
#include "kernels/rerun_kernel.h"
#include "ops/attention/composed.h"
#include "ops/attention/flash.h"
#include "ops/attention/slots.h"
#include "records/attention_form.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

constexpr int64_t kFlashChoice = 1;  // at::SDPBackend::flash_attention

struct Options {
  bool causal;
  std::optional<double> scale;
  int64_t stream;  // of the random state
  bool cached;     // Attention with keys and values of the past

  explicit Options(const Node& node)
      : causal(node.get_int("is_causal", 0) != 0),
        stream(node.get_int("stream", 0)),
        cached(node.op() == "Attention" && node.input(kPastKey) && node.input(kPastValue)) {
    if (node.find_attribute("scale")) scale = node.get_float("scale", 1.0);
  }
};

// An additive mask in q's type, and whether the kernel still has to apply causality: PyTorch refuses both at once.
struct Mask {
  std::optional<at::Tensor> additive;
  bool causal;
};

Mask prepare(const at::Tensor& given, const at::Tensor& q, const at::Tensor& k, bool causal) {
  if (!given.defined()) return {std::nullopt, causal};
  const at::Tensor mask = pad_mask(given, k.size(2));
  at::Tensor additive = mask;
  if (mask.scalar_type() == at::kBool)
    additive = at::where(mask, at::scalar_tensor(0, q.options()), at::scalar_tensor(kHiddenScore, q.options()));
  else if (mask.scalar_type() != q.scalar_type())
    additive = mask.to(q.scalar_type());
  if (causal) additive = at::add(additive, at::full({q.size(2), k.size(2)}, kHiddenScore, q.options()).triu_(1));
  return {additive, false};
}

// Key heads fewer than query heads are shared by groups.
bool grouped(const at::Tensor& q, const at::Tensor& k) { return q.size(1) != k.size(1); }

// ATen's flash kernel reads as many rows of v as k has, without a look at how many there are.
void check_lengths(const at::Tensor& k, const at::Tensor& v) {
  ORTMODULE_CHECK(k.dim() == 4 && v.dim() == 4 && k.size(2) == v.size(2), kRuntime, "[Attention] K ", k.sizes(),
                  " and V ", v.sizes(), " should have rank 4 and one length");
}

// A graph may hold the gradient as a node of its own: what it is given need not be what a forward has made.
void check_saved(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dy,
                 const at::Tensor& y, const at::Tensor& lse) {
  check_lengths(k, v);
  const bool fits = q.dim() == 4 && q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(1) == v.size(1) &&
                    k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.size(3) == k.size(3);
  ORTMODULE_CHECK(fits, kRuntime, "[AttentionGrad] Q ", q.sizes(), ", K ", k.sizes(), " and V ", v.sizes(),
                  " do not fit");
  const std::vector<int64_t> sizes{q.size(0), q.size(1), q.size(2), v.size(3)};
  ORTMODULE_CHECK(dy.sizes() == c10::IntArrayRef(sizes) && y.sizes() == c10::IntArrayRef(sizes), kRuntime,
                  "[AttentionGrad] the result should have sizes ", c10::IntArrayRef(sizes), ", got ", y.sizes(),
                  " and a gradient of ", dy.sizes());
  ORTMODULE_CHECK(lse.sizes() == c10::IntArrayRef(sizes).slice(0, 3), kRuntime,
                  "[AttentionGrad] the sums of rows should have sizes ", c10::IntArrayRef(sizes).slice(0, 3), ", got ",
                  lse.sizes());
}

// torch 2.11 divides by the number of heads, which ends the process where there is none.
bool without_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_lengths(k, v);
  ORTMODULE_CHECK(k.size(1) > 0 || q.size(1) == 0, kRuntime, "[Attention] ", q.size(1),
                  " query heads have no key head");
  return q.size(1) == 0;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask, double dropout,
                  std::optional<double> scale) {
  if (without_heads(q, k, v)) return at::matmul(at::matmul(q, k.mT()), v);
  return at::scaled_dot_product_attention(q, k, v, mask.additive, dropout, mask.causal, scale, grouped(q, k));
}

bool flash_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask,
                  std::optional<double> scale) {
  return q.is_cpu() && !without_heads(q, k, v) &&
         at::_fused_sdp_choice(q, k, v, mask.additive, 0.0, mask.causal, scale, grouped(q, k)) == kFlashChoice;
}

// Keys and values, those of the past in front; `past` of a node of Attention that may have them.
struct KeysAndValues {
  at::Tensor k, v;
};

at::Tensor behind(const at::Tensor& past, const at::Tensor& fresh) {
  const bool fits = past.dim() == 4 && fresh.dim() == 4 && past.size(0) == fresh.size(0) &&
                    past.size(1) == fresh.size(1) && past.size(3) == fresh.size(3);
  ORTMODULE_CHECK(fits, kRuntime, "[Attention] the past ", past.sizes(), " does not fit ", fresh.sizes());
  return at::cat({past, fresh}, 2);
}

KeysAndValues keys_and_values(KernelContext& c, const Options& options) {
  KeysAndValues out{c.in(kKey), c.in(kValue)};
  if (!options.cached) return out;
  out.k = behind(c.in(kPastKey), out.k);
  out.v = behind(c.in(kPastValue), out.v);
  c.out(kPresentKey, out.k);
  c.out(kPresentValue, out.v);
  return out;
}

void attention(KernelContext& c, const at::Tensor& k, const at::Tensor& v, const Options& options) {
  const at::Tensor& q = c.in(kQuery);
  const Mask mask = prepare(c.in_or_undefined(kMask), q, k, options.causal);
  if (flash_on_cpu(q, k, v, mask, options.scale)) {
    auto [y, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, mask.causal, mask.additive, options.scale);
    c.out(kResult, std::move(y));
    return c.out(kLse, std::move(lse));
  }
  c.out(kResult, attend(q, k, v, mask, 0.0, options.scale));
  if (c.wants(kLse)) c.out(kLse, at::empty({0, 0, 0}, q.options().dtype(at::kFloat)));
}

// Which probabilities PhiloxAttention keeps, bool[batch, heads, queries, keys], for the unfused path. On the CPU these
// are the elements that the tiled kernel keeps; elsewhere a throw-away generator's, seeded with state and stream.
at::Tensor keep_mask(const at::Tensor& q, const at::Tensor& k, double ratio, const at::Tensor& state, int64_t stream) {
  const std::vector<int64_t> sizes{q.size(0), q.size(1), q.size(2), k.size(2)};
  const auto state_words = philox_state_words(state);
  const int64_t* const words = state_words.data();
  if (q.is_cpu()) return flash_keep_mask(sizes, dropout_state(ratio, philox_stream(words, stream)));
  at::Generator generator = at::globalContext().defaultGenerator(q.device()).clone();
  generator.set_current_seed(philox_seed(words, stream));
  return at::empty(sizes, q.options().dtype(at::kBool)).bernoulli_(1 - ratio, generator);
}

// Attention, with dropout where `kept` is defined.
at::Tensor unfused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask, double ratio,
                   const at::Tensor& kept, const Options& options) {
  if (!kept.defined()) return attend(q, k, v, mask, 0.0, options.scale);
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask.additive, ratio, mask.causal, kept,
                                                            options.scale, grouped(q, k)));
}

// Backward by a second forward under autograd.
void attention_grad_again(KernelContext& c, const Options& options) {
  at::Tensor kept;
  const double ratio = c.has(kGradRatio) ? c.double_value(kGradRatio) : 0.0;
  if (ratio > 0) kept = keep_mask(c.in(kGradQuery), c.in(kGradKey), ratio, c.in(kGradRandomState), options.stream);
  AutogradScope scope;
  std::vector<at::Tensor> handles;
  std::vector<size_t> slots;
  const auto operand = [&](size_t slot, const at::Tensor& t) {
    if (!c.wants(slot)) return t;
    GradientInput input = gradient_input(t);
    slots.push_back(slot);
    handles.push_back(std::move(input.handle));
    return std::move(input.tensor);
  };
  const at::Tensor q = operand(kQueryGrad, c.in(kGradQuery)), k = operand(kKeyGrad, c.in(kGradKey)),
                   v = operand(kValueGrad, c.in(kGradValue));
  const Mask mask =
      prepare(c.has(kGradMask) ? operand(kMaskGrad, c.in(kGradMask)) : at::Tensor(), q, k, options.causal);
  const at::Tensor y = unfused(q, k, v, mask, ratio, kept, options);
  const auto grads = input_gradients({y}, handles, {c.in(kGradOfResult)});
  for (size_t i = 0; i < slots.size(); ++i)
    c.out(slots[i], grads[i].defined() ? grads[i].detach() : input_zeros(handles[i]));
}

void attention_grad(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(kGradQuery), &k = c.in(kGradKey), &v = c.in(kGradValue), &lse = c.in(kGradLse);
  if (lse.numel() == 0 || c.wants(kMaskGrad) || c.has(kGradRandomState)) return attention_grad_again(c, options);
  const Mask mask = prepare(c.in_or_undefined(kGradMask), q, k, options.causal);
  check_saved(q, k, v, c.in(kGradOfResult), c.in(kGradResult), lse);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      c.in(kGradOfResult), q, k, v, c.in(kGradResult), lse, 0.0, mask.causal, mask.additive, options.scale);
  c.out(kQueryGrad, std::move(dq));
  c.out(kKeyGrad, std::move(dk));
  c.out(kValueGrad, std::move(dv));
}

void philox_attention(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(kQuery), &k = c.in(kKey), &v = c.in(kValue);
  const Mask mask = prepare(c.in_or_undefined(kMask), q, k, options.causal);
  const double ratio = c.double_value(kRatio);
  const at::Tensor kept = ratio > 0 ? keep_mask(q, k, ratio, c.in(kRandomState), options.stream) : at::Tensor();
  c.out(kResult, unfused(q, k, v, mask, ratio, kept, options));
  if (c.wants(kPhiloxLse)) c.out(kPhiloxLse, at::empty({0, 0, 0}, q.options().dtype(at::kFloat)));
}

// -- the tiled kernels -----------------------------------------------------------------------------------------------

FlashInputs flash_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                         const Options& options) {
  FlashInputs in{q, k, v, mask, options.causal, 0};
  in.scale = static_cast<float>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3)))));
  return in;
}

at::Tensor flash_mask(const KernelContext& c, size_t i, const at::Tensor& k) {
  return c.has(i) ? pad_mask(c.in(i), k.size(2)) : at::Tensor();
}

// A single query makes no tile: transposing the keys would cost more than the products.
bool is_single_query(const at::Tensor& q, const at::Tensor& mask) { return q.size(2) == 1 && !mask.defined(); }

void attention(KernelContext& c, const Options& options) {
  const auto [k, v] = keys_and_values(c, options);
  attention(c, k, v, options);
}

void tiled_attention(KernelContext& c, const Options& options) {
  const auto [k, v] = keys_and_values(c, options);
  const at::Tensor &q = c.in(kQuery), mask = flash_mask(c, kMask, k);
  if (is_single_query(q, mask) || !flash_supports(q, k, v, mask)) return attention(c, k, v, options);
  FlashResult result = flash_forward(flash_inputs(q, k, v, mask, options));
  c.out(kResult, std::move(result.y));
  c.out(kLse, std::move(result.lse));
}

void tiled_philox_attention(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(kQuery), &k = c.in(kKey), &v = c.in(kValue), mask = flash_mask(c, kMask, k);
  if (!flash_supports(q, k, v, mask)) return philox_attention(c, options);
  FlashInputs in = flash_inputs(q, k, v, mask, options);
  in.dropout = dropout_state(c.double_value(kRatio),
                             philox_stream(philox_state_words(c.in(kRandomState)).data(), options.stream));
  FlashResult result = flash_forward(in);
  c.out(kResult, std::move(result.y));
  c.out(kPhiloxLse, std::move(result.lse));
}

void tiled_attention_grad(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(kGradQuery), &k = c.in(kGradKey), &v = c.in(kGradValue), &lse = c.in(kGradLse),
                   mask = flash_mask(c, kGradMask, k);
  const bool of_aten = !c.has(kGradRandomState) && is_single_query(q, mask);  // lse is that of ATen's kernel
  if (lse.numel() == 0 || of_aten || !flash_supports(q, k, v, mask)) return attention_grad(c, options);
  FlashInputs in = flash_inputs(q, k, v, mask, options);
  if (c.has(kGradRandomState))
    in.dropout = dropout_state(c.double_value(kGradRatio),
                               philox_stream(philox_state_words(c.in(kGradRandomState)).data(), options.stream));
  check_saved(q, k, v, c.in(kGradOfResult), c.in(kGradResult), lse);
  FlashGrads grads = flash_backward(in, c.in(kGradOfResult), c.in(kGradResult), lse,
                                    {c.wants(kQueryGrad), c.wants(kKeyGrad), c.wants(kValueGrad), c.wants(kMaskGrad)});
  c.out(kQueryGrad, std::move(grads.q));
  c.out(kKeyGrad, std::move(grads.k));
  c.out(kValueGrad, std::move(grads.v));
  if (c.wants(kMaskGrad)) c.out(kMaskGrad, grads.mask.narrow(-1, 0, c.in(kGradMask).size(-1)));
}

void attention_dropout(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(kQuery), &k = c.in(kKey);
  const Mask mask = prepare(c.in_or_undefined(kMask), q, k, options.causal);
  c.out(kResult, attend(q, k, c.in(kValue), mask, c.double_value(kRatio), options.scale));
}

template <void (*kernel)(KernelContext&, const Options&)>
Kernel make(const Node& node) {
  return [options = Options(node)](KernelContext& c) { kernel(c, options); };
}

TensorFunction composed(const Node& node) { return AttentionForm(node); }

template <void (*kernel)(KernelContext&, const Options&)>
Kernel make_attention(const Node& node) {
  if (plain_attention(node) || plain_but_for_past(node)) return make<kernel>(node);
  return function_kernel(composed(node));
}

}  // namespace

ORTMODULE_KERNEL("", Attention, "aten", make_attention<attention>);
ORTMODULE_KERNEL("", Attention, "cpu", make_attention<tiled_attention>);
ORTMODULE_KERNEL("ai.ortmodule", ComposedAttentionGrad, "aten", rerun_kernel_of<composed>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionGrad, "aten", make<attention_grad>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionGrad, "cpu", make<tiled_attention_grad>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionDropout, "aten", make<attention_dropout>);
ORTMODULE_KERNEL("ai.ortmodule", PhiloxAttention, "aten", make<philox_attention>);
ORTMODULE_KERNEL("ai.ortmodule", PhiloxAttention, "cpu", make<tiled_philox_attention>);

}  // namespace ortmodule
