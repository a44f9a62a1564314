// Kernels of LayerNormalization and its gradient: ATen's fused forward and backward, and loops of our own for rows of
// floats on the CPU (norm_rows.h).
#include <ATen/core/Tensor.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/small_tensor.h"
#include "ops/norm/norm_rows.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// ATen wants parameters of exactly the normalized shape; the standard lets them broadcast to it.
at::Tensor parameter(const at::Tensor& p, c10::IntArrayRef shape) {
  return !p.defined() || p.sizes() == shape ? p : p.expand(shape).contiguous();
}

// ATen's CPU kernel keeps statistics of bfloat16 inputs in bfloat16, the standard's type for them is float.
at::Tensor stats_to(const at::Tensor& t, at::ScalarType type) { return t.scalar_type() == type ? t : t.to(type); }

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided && t.is_contiguous();
}

// Whether rows and parameters are floats in memory; gives the rows.
std::optional<NormRows> plain_rows(const at::Tensor& x, const at::Tensor& scale, c10::IntArrayRef shape) {
  if (!is_plain(x) || !is_plain(scale) || x.numel() == 0 || scale.sizes() != shape) return std::nullopt;
  const int64_t width = c10::multiply_integers(shape);
  if (width > kLongestNormRow) return std::nullopt;
  return NormRows{x.const_data_ptr<float>(), scale.const_data_ptr<float>(), x.numel() / width, width};
}

Kernel make_layer_norm(const Node& node) {
  const int64_t axis = node.get_int("axis", -1);
  const double epsilon = node.get_float("epsilon", 1e-5);
  return [axis, epsilon](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const auto shape = x.sizes().slice(positive_axis(axis, x.dim(), "LayerNormalization"));
    const at::Tensor &scale = c.in(1), &bias = c.in_or_undefined(2);
    const bool plain_bias = !bias.defined() || (is_plain(bias) && bias.sizes() == shape);
    if (const auto rows = plain_bias ? plain_rows(x, scale, shape) : std::nullopt) {
      c10::DimVector ones(x.sizes().begin(), x.sizes().end());
      std::fill(ones.end() - static_cast<std::ptrdiff_t>(shape.size()), ones.end(), 1);
      at::Tensor y = make_float(x.sizes()), mean = make_float(ones), inv_std = make_float(ones);
      normalize_rows(*rows, bias.defined() ? bias.const_data_ptr<float>() : nullptr, epsilon,
                     y.mutable_data_ptr<float>(), mean.mutable_data_ptr<float>(), inv_std.mutable_data_ptr<float>());
      c.out(0, std::move(y));
      if (c.wants(1)) c.out(1, std::move(mean));
      if (c.wants(2)) c.out(2, std::move(inv_std));
      return;
    }
    auto [y, mean, inv_std] =
        at::native_layer_norm(x, shape, parameter(c.in(1), shape), parameter(c.in_or_undefined(2), shape), epsilon);
    c.out(0, std::move(y));
    const auto type = computed_in(x.scalar_type());
    if (c.wants(1)) c.out(1, stats_to(mean, type));
    if (c.wants(2)) c.out(2, stats_to(inv_std, type));
  };
}

// A graph may hold the gradient as a node of its own, with anything for what a forward has made.
void check_saved(const KernelContext& c, c10::IntArrayRef shape) {
  const at::Tensor &dy = c.in(0), &x = c.in(1), &mean = c.in(2), &inv_std = c.in(3);
  const int64_t width = c10::multiply_integers(shape), rows = width > 0 ? x.numel() / width : 0;
  ORTMODULE_CHECK(dy.sizes() == x.sizes() && (width == 0 || (mean.numel() == rows && inv_std.numel() == rows)),
                  kRuntime, "[LayerNormalizationGrad] dY ", dy.sizes(), ", Mean ", mean.sizes(), " and InvStdDev ",
                  inv_std.sizes(), " do not fit X ", x.sizes());
}

void plain_grad(KernelContext& c, const NormRows& rows, c10::IntArrayRef shape) {
  at::Tensor dx, dscale, dbias;
  if (c.wants(0)) dx = make_float(c.in(1).sizes());
  if (c.wants(1) || c.wants(2)) {
    dscale = make_float(shape);
    dbias = make_float(shape);
  }
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; };
  normalize_rows_grad(rows, c.in(0).const_data_ptr<float>(), c.in(2).const_data_ptr<float>(),
                      c.in(3).const_data_ptr<float>(), {data(dx), data(dscale), data(dbias)});
  if (c.wants(0)) c.out(0, std::move(dx));
  if (c.wants(1)) c.out(1, std::move(dscale));
  if (c.wants(2)) c.out(2, std::move(dbias));
}

Kernel make_layer_norm_grad(const Node& node) {
  const int64_t axis = node.get_int("axis", -1);
  return [axis](KernelContext& c) {
    const at::Tensor &x = c.in(1), &scale = c.in(4);
    const auto shape = x.sizes().slice(positive_axis(axis, x.dim(), "LayerNormalizationGrad"));
    check_saved(c, shape);
    if (const auto rows = plain_rows(x, scale, shape);
        rows && is_plain(c.in(0)) && is_plain(c.in(2)) && is_plain(c.in(3)))
      return plain_grad(c, *rows, shape);
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
