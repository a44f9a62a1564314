// Kernels of Attention, AttentionGrad and AttentionDropout.
//
// On the CPU: ATen's flash kernel and its backward where ATen's own rule allows them. Everywhere else forward is
// PyTorch's function, and backward runs it again under autograd: one more forward, and the device's fused backward.
// A node that is not plain (form.h) is composed of ATen operators, its gradient by a second forward too.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <limits>

#include "ops/attention/composed.h"
#include "ops/attention/form.h"
#include "ops/autograd_support.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"
#include "ops/rerun_kernel.h"

namespace ortmodule {
namespace {

constexpr int64_t kFlash = 1;  // at::SDPBackend::flash_attention
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Options {
  bool causal;
  std::optional<double> scale;

  explicit Options(const Node& node) : causal(node.get_int("is_causal", 0) != 0) {
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
    additive = at::where(mask, at::scalar_tensor(0, q.options()), at::scalar_tensor(kMinusInfinity, q.options()));
  else if (mask.scalar_type() != q.scalar_type())
    additive = mask.to(q.scalar_type());
  if (causal) additive = at::add(additive, at::full({q.size(2), k.size(2)}, kMinusInfinity, q.options()).triu_(1));
  return {additive, false};
}

// Key heads fewer than query heads are shared by groups.
bool grouped(const at::Tensor& q, const at::Tensor& k) { return q.size(1) != k.size(1); }

bool flash_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask,
                  std::optional<double> scale) {
  return q.is_cpu() && at::_fused_sdp_choice(q, k, v, mask.additive, 0.0, mask.causal, scale, grouped(q, k)) == kFlash;
}

void attention(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(0), &k = c.in(1), &v = c.in(2);
  const Mask mask = prepare(c.in_or_undefined(3), q, k, options.causal);
  if (flash_on_cpu(q, k, v, mask, options.scale)) {
    auto [y, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, mask.causal, mask.additive, options.scale);
    c.out(0, std::move(y));
    return c.out(4, std::move(lse));
  }
  c.out(0, at::scaled_dot_product_attention(q, k, v, mask.additive, 0.0, mask.causal, options.scale, grouped(q, k)));
  if (c.wants(4)) c.out(4, at::empty({0, 0, 0}, q.options().dtype(at::kFloat)));
}

// Backward by a second forward under autograd.
void attention_grad_again(KernelContext& c, const Options& options) {
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
  const at::Tensor q = operand(0, c.in(1)), k = operand(1, c.in(2)), v = operand(2, c.in(3));
  const Mask mask = prepare(c.has(6) ? operand(3, c.in(6)) : at::Tensor(), q, k, options.causal);
  const at::Tensor y =
      at::scaled_dot_product_attention(q, k, v, mask.additive, 0.0, mask.causal, options.scale, q.size(1) != k.size(1));
  const auto grads = input_gradients({y}, handles, {c.in(0)});
  for (size_t i = 0; i < slots.size(); ++i)
    c.out(slots[i], grads[i].defined() ? grads[i].detach() : input_zeros(handles[i]));
}

void attention_grad(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(1), &k = c.in(2), &v = c.in(3), &lse = c.in(5);
  if (lse.numel() == 0 || c.wants(3)) return attention_grad_again(c, options);
  const Mask mask = prepare(c.in_or_undefined(6), q, k, options.causal);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      c.in(0), q, k, v, c.in(4), lse, 0.0, mask.causal, mask.additive, options.scale);
  c.out(0, std::move(dq));
  c.out(1, std::move(dk));
  c.out(2, std::move(dv));
}

void attention_dropout(KernelContext& c, const Options& options) {
  const at::Tensor &q = c.in(0), &k = c.in(1);
  const Mask mask = prepare(c.in_or_undefined(3), q, k, options.causal);
  c.out(0, at::scaled_dot_product_attention(q, k, c.in(2), mask.additive, c.double_value(4), mask.causal, options.scale,
                                            grouped(q, k)));
}

template <void (*kernel)(KernelContext&, const Options&)>
Kernel make(const Node& node) {
  return [options = Options(node)](KernelContext& c) { kernel(c, options); };
}

TensorFunction composed(const Node& node) { return AttentionForm(node); }

Kernel make_attention(const Node& node) {
  if (plain_attention(node)) return make<attention>(node);
  return function_kernel(composed(node));
}

}  // namespace

ORTMODULE_KERNEL("", Attention, "aten", make_attention);
ORTMODULE_KERNEL("ai.ortmodule", ComposedAttentionGrad, "aten", rerun_kernel_of<composed>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionGrad, "aten", make<attention_grad>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionDropout, "aten", make<attention_dropout>);

}  // namespace ortmodule
