// Kernels of LayerNormalization and its gradient: ATen's fused forward and backward.
#include <ATen/core/Tensor.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "ops/host_values.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

// ATen wants parameters of exactly the normalized shape; the standard lets them broadcast to it.
at::Tensor parameter(const at::Tensor& p, c10::IntArrayRef shape) {
  return !p.defined() || p.sizes() == shape ? p : p.expand(shape).contiguous();
}

// ATen's CPU kernel keeps statistics of bfloat16 inputs in bfloat16, the standard's type for them is float.
at::Tensor stats_to(const at::Tensor& t, at::ScalarType type) { return t.scalar_type() == type ? t : t.to(type); }

Kernel make_layer_norm(const Node& node) {
  const int64_t axis = node.get_int("axis", -1);
  const double epsilon = node.get_float("epsilon", 1e-5);
  return [axis, epsilon](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const auto shape = x.sizes().slice(positive_axis(axis, x.dim(), "LayerNormalization"));
    auto [y, mean, inv_std] =
        at::native_layer_norm(x, shape, parameter(c.in(1), shape), parameter(c.in_or_undefined(2), shape), epsilon);
    c.out(0, std::move(y));
    const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    if (c.wants(1)) c.out(1, stats_to(mean, type));
    if (c.wants(2)) c.out(2, stats_to(inv_std, type));
  };
}

Kernel make_layer_norm_grad(const Node& node) {
  const int64_t axis = node.get_int("axis", -1);
  return [axis](KernelContext& c) {
    const at::Tensor &x = c.in(1), &scale = c.in(4);
    const auto shape = x.sizes().slice(positive_axis(axis, x.dim(), "LayerNormalizationGrad"));
    const bool expanded = scale.sizes() != shape;
    // ATen's CPU kernel takes statistics in the parameters' type, its CUDA kernel in float.
    const auto type = x.is_cpu() ? scale.scalar_type() : c.in(2).scalar_type();
    const at::Tensor gamma = parameter(scale, shape);
    // ATen reads no bias, but takes the type and sizes of d(bias) from it.
    auto [dx, dscale, dbias] =
        at::native_layer_norm_backward(c.in(0), x, shape, stats_to(c.in(2), type), stats_to(c.in(3), type), gamma,
                                       gamma, {c.wants(0), c.wants(1), c.wants(2)});
    c.out(0, std::move(dx));
    if (c.wants(1)) c.out(1, expanded ? dscale.sum_to_size(scale.sizes()) : dscale);
    if (c.wants(2)) c.out(2, expanded ? dbias.sum_to_size(scale.sizes()) : dbias);
  };
}

}  // namespace

ORTMODULE_KERNEL("", LayerNormalization, "aten", make_layer_norm);
ORTMODULE_KERNEL("ai.ortmodule", LayerNormalizationGrad, "aten", make_layer_norm_grad);

}  // namespace ortmodule
