// Kernels of Conv, ConvTranspose and their gradients, all through ATen's convolution.
//
// ATen pads both ends alike. Where the standard does not, Conv pads its input first; ConvTranspose computes everything
// and cuts the result. Backward undoes the same step. Where planes are small, a matrix product may take ATen's place
// (small_planes.h). bfloat16 is widened to floats on CPUs that multiply those faster; a GPU's library is given channels
// last (channels_last.h).
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/relu.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/processor.h"
#include "ops/conv/channels_last.h"
#include "ops/conv/conv_pads.h"
#include "ops/conv/convolve.h"
#include "ops/conv/small_planes.h"
#include "products/matmul_provider.h"
#include "records/kernel_registry.h"

namespace ortmodule {

namespace {

// The type rule says the same where it knows the ranks.
void check_fits(const ConvAttributes& a, const at::Tensor& x, const at::Tensor& w) {
  ORTMODULE_CHECK(x.dim() >= 3 && w.dim() == x.dim() && a.fits(static_cast<size_t>(x.dim() - 2)), kRuntime,
                  "[Conv] X of shape ", x.sizes(), ", W of shape ", w.sizes(),
                  " and the attributes do not fit: all should have the same number of spatial axes");
}

}  // namespace

ConvAttributes conv_attributes(const ConvAttributes& declared, const at::Tensor& x, const at::Tensor& w) {
  check_fits(declared, x, w);
  ConvAttributes a = declared;
  if (a.auto_pad == "VALID") a.pads.assign(a.pads.size(), 0);
  if (!a.same()) return a;
  for (size_t i = 0; i < static_cast<size_t>(x.dim() - 2); ++i) {
    const int64_t size = x.size(i + 2), out = (size + a.strides[i] - 1) / a.strides[i];
    a.set_total_pad(i, (out - 1) * a.strides[i] + a.extent(i, w.size(i + 2)) - size);
  }
  return a;
}

std::vector<int64_t> aten_pads(const ConvAttributes& a, bool negative) {
  const size_t rank = a.pads.size() / 2;
  std::vector<int64_t> out;
  for (size_t i = rank; i-- > 0;) {
    out.push_back(negative ? -a.pads[i] : a.pads[i]);
    out.push_back(negative ? -a.pads[i + rank] : a.pads[i + rank]);
  }
  return out;
}

namespace {

size_t spatial_rank(const at::Tensor& x) { return static_cast<size_t>(x.dim() - 2); }

ConvAttributes transpose_attributes(const ConvAttributes& declared, const at::Tensor& x, const at::Tensor& w) {
  check_fits(declared, x, w);
  ConvAttributes a = declared;
  if (a.auto_pad == "VALID") a.pads.assign(a.pads.size(), 0);
  if (!a.same() && a.output_shape.empty()) return a;
  for (size_t i = 0; i < spatial_rank(x); ++i) {
    const int64_t full = a.strides[i] * (x.size(i + 2) - 1) + a.output_padding[i] + a.extent(i, w.size(i + 2));
    const int64_t total = full - (a.output_shape.empty() ? x.size(i + 2) * a.strides[i] : a.output_shape[i]);
    a.set_total_pad(i, total);
    // A wanted size beyond the full one is reached by padding the output's end.
    if (total < 0) a.output_padding[i] -= total;
  }
  return a;
}

c10::IntArrayRef begins(const ConvAttributes& a) { return c10::IntArrayRef(a.pads).slice(0, a.pads.size() / 2); }

std::vector<int64_t> zeros(size_t n) { return std::vector<int64_t>(n, 0); }

// Attributes are read for the rank of the weight, which the node's first run knows at the latest.
}  // namespace

ConvAttributes attributes_of(const Node& node, size_t weight) {
  const auto& shape = node.input(weight)->type().shape;
  return ConvAttributes(node,
                        shape ? std::max<size_t>(shape->size(), 2) - 2 : node.get_ints("kernel_shape", {1, 1}).size());
}

namespace {

template <void (*kernel)(KernelContext&, const ConvAttributes&)>
Kernel make(const Node& node) {
  return [a = attributes_of(node, node.op().ends_with("Grad") ? 2 : 1)](KernelContext& c) { kernel(c, a); };
}

// Sizes of a convolution's result.
c10::DimVector result_sizes(const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef padding,
                            const ConvAttributes& a) {
  c10::DimVector out{x.size(0), w.size(0)};
  for (size_t i = 0; i < spatial_rank(x); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    out.push_back((x.size(axis) + 2 * padding[i] - a.extent(i, w.size(axis))) / a.strides[i] + 1);
  }
  return out;
}

// Multiplications per element read and written from which on a conversion of all of them is worth it: those of 3x3
// depthwise convolutions are not.
constexpr int64_t kWorthWidening = 24;

// Whether oneDNN multiplies bfloat16 slower than the same numbers as floats. Under torch.use_deterministic_algorithms
// results are eager's to the bit, as those of products are (matmul_provider.h).
bool is_better_wide(const at::Tensor& x, const at::Tensor& w, int64_t results, bool transposed) {
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16 || w.scalar_type() != at::kBFloat16 || w.size(0) == 0 ||
      deterministic_compute())
    return false;
  const int64_t products = (transposed ? x.numel() : results) * (w.numel() / w.size(0));
  return products >= kWorthWidening * (x.numel() + results) && !has_bfloat16_tiles() && !pairs_pay();
}

int64_t count(c10::IntArrayRef sizes) { return c10::multiply_integers(sizes); }

at::Tensor widened(const at::Tensor& t, bool wide) { return wide && t.defined() ? t.to(at::kFloat) : t; }
at::Tensor narrowed(const at::Tensor& t, bool wide) { return wide && t.defined() ? t.to(at::kBFloat16) : t; }

// at::convolution and its gradients, computed in floats or with channels last where that is better.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const ConvAttributes& a,
                       c10::IntArrayRef padding, bool transposed, c10::IntArrayRef output_padding, bool wide) {
  if (takes_channels_last(x))
    return at::convolution(channels_last(x), channels_last(w), bias, a.strides, padding, a.dilations, transposed,
                           output_padding, a.group);
  return narrowed(at::convolution(widened(x, wide), widened(w, wide), widened(bias, wide), a.strides, padding,
                                  a.dilations, transposed, output_padding, a.group),
                  wide);
}

ConvGradients gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a,
                        c10::IntArrayRef padding, bool transposed, c10::IntArrayRef output_padding,
                        std::array<bool, 3> wants, bool wide) {
  const int64_t bias_sizes[] = {dy.size(1)};
  if (takes_channels_last(x)) {
    auto [dx, dw, db] = at::convolution_backward(channels_last(dy), channels_last(x), channels_last(w),
                                                 at::OptionalIntArrayRef(bias_sizes), a.strides, padding, a.dilations,
                                                 transposed, output_padding, a.group, wants);
    return {std::move(dx), laid_out_like(w, dw), std::move(db)};
  }
  const auto [dx, dw, db] = at::convolution_backward(widened(dy, wide), widened(x, wide), widened(w, wide),
                                                     at::OptionalIntArrayRef(bias_sizes), a.strides, padding,
                                                     a.dilations, transposed, output_padding, a.group, wants);
  return {narrowed(dx, wide), narrowed(dw, wide), narrowed(db, wide)};
}

// convolve() of equal pads at both ends.
at::Tensor convolve_evenly(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const ConvAttributes& a,
                           c10::IntArrayRef padding, PackedFilters* packed, const ConvEnding& ending) {
  const c10::DimVector sizes = result_sizes(x, w, padding, a);
  const bool is_some = std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0; });
  if (packed && is_some && (!ending.other.defined() || ending.other.sizes() == sizes))
    if (at::Tensor y = packed->convolution(x, w, bias, a, padding, sizes, ending); y.defined()) return y;
  at::Tensor y;
  if (is_better_product(x, w, a, sizes, true)) {
    ConvAttributes padded = a;
    padded.pads.assign(padding.begin(), padding.end());
    y = product_convolution(x, w, bias, padded, sizes);
  } else {
    y = convolution(x, w, bias, a, padding, false, zeros(spatial_rank(x)), is_better_wide(x, w, count(sizes), false));
  }
  if (ending.other.defined()) y = at::add(y, ending.other);
  return ending.relu ? at::relu(y) : y;
}

}  // namespace

at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const ConvAttributes& declared,
                    PackedFilters* packed, const ConvEnding& ending) {
  check_fits(declared, x, w);
  const auto run = [&](const at::Tensor& input, c10::IntArrayRef padding, const ConvAttributes& a) {
    return convolve_evenly(input, w, bias, a, padding, packed, ending);
  };
  if (declared.auto_pad == "NOTSET" && declared.symmetric()) return run(x, begins(declared), declared);
  const ConvAttributes a = conv_attributes(declared, x, w);
  if (a.symmetric()) return run(x, begins(a), a);
  return run(at::constant_pad_nd(x, aten_pads(a, false)), zeros(spatial_rank(x)), a);
}

namespace {

// The same of a transposed convolution's.
c10::DimVector transposed_sizes(const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef padding,
                                const ConvAttributes& a) {
  c10::DimVector out{x.size(0), w.size(1) * a.group};
  for (size_t i = 0; i < spatial_rank(x); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    out.push_back((x.size(axis) - 1) * a.strides[i] + a.output_padding[i] + a.extent(i, w.size(axis)) - 2 * padding[i]);
  }
  return out;
}

// oneDNN answers a gradient of other sizes than the result's with an error of its own.
void check_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef result) {
  ORTMODULE_CHECK(dy.sizes() == result, kRuntime, "[Conv] the gradient of shape ", dy.sizes(),
                  " does not fit X of shape ", x.sizes(), " (padded) and W of shape ", w.sizes());
}

void conv_grad(KernelContext& c, const ConvAttributes& declared) {
  const at::Tensor &dy = c.in(0), &x = c.in(1), &w = c.in(2);
  check_fits(declared, x, w);
  const size_t rank = spatial_rank(x);
  const ConvAttributes a = conv_attributes(declared, x, w);
  const bool symmetric = a.symmetric();
  const at::Tensor input = symmetric ? x : at::constant_pad_nd(x, aten_pads(a, false));
  const std::vector<int64_t> padding = symmetric ? begins(a).vec() : zeros(rank);
  check_gradient(dy, input, w, result_sizes(input, w, padding, a));
  const std::array<bool, 3> wants{c.wants(0), c.wants(1), c.wants(2)};
  ConvAttributes padded = a;
  padded.pads.assign(padding.begin(), padding.end());
  auto [dx, dw, db] =
      is_better_product(input, w, padded, dy.sizes(), false)
          ? product_convolution_gradients(dy, input, w, padded, wants)
          : gradients(dy, input, w, a, padding, false, zeros(rank), wants, is_better_wide(input, w, dy.numel(), false));
  if (c.wants(0)) c.out(0, symmetric ? dx : at::constant_pad_nd(dx, aten_pads(a, true)));
  c.out(1, std::move(dw));
  c.out(2, std::move(db));
}

void conv_transpose(KernelContext& c, const ConvAttributes& declared) {
  const at::Tensor &x = c.in(0), &w = c.in(1);
  const ConvAttributes a = transpose_attributes(declared, x, w);
  const bool symmetric = a.symmetric();
  const std::vector<int64_t> padding = symmetric ? begins(a).vec() : zeros(spatial_rank(x));
  const bool wide = is_better_wide(x, w, count(transposed_sizes(x, w, padding, a)), true);
  const at::Tensor y = convolution(x, w, c.in_or_undefined(2), a, padding, true, a.output_padding, wide);
  c.out(0, symmetric ? y : at::constant_pad_nd(y, aten_pads(a, true)));
}

void conv_transpose_grad(KernelContext& c, const ConvAttributes& declared) {
  const at::Tensor &x = c.in(1), &w = c.in(2);
  const ConvAttributes a = transpose_attributes(declared, x, w);
  const bool symmetric = a.symmetric();
  const at::Tensor dy = symmetric ? c.in(0) : at::constant_pad_nd(c.in(0), aten_pads(a, false));
  const std::vector<int64_t> padding = symmetric ? begins(a).vec() : zeros(spatial_rank(x));
  check_gradient(dy, x, w, transposed_sizes(x, w, padding, a));
  auto [dx, dw, db] = gradients(dy, x, w, a, padding, true, a.output_padding, {c.wants(0), c.wants(1), c.wants(2)},
                                is_better_wide(x, w, dy.numel(), true));
  c.out(0, std::move(dx));
  c.out(1, std::move(dw));
  c.out(2, std::move(db));
}

}  // namespace

ORTMODULE_KERNEL("", Conv, "aten", [](const Node& node) -> Kernel {
  return [a = attributes_of(node, 1), packed = PackedFilters::of(node)](KernelContext& c) {
    c.out(0, convolve(c.in(0), c.in(1), c.in_or_undefined(2), a, packed.get()));
  };
});
ORTMODULE_KERNEL("ai.ortmodule", ConvGrad, "aten", make<conv_grad>);
ORTMODULE_KERNEL("com.microsoft", ConvGrad, "aten", make<conv_grad>);
ORTMODULE_KERNEL("", ConvTranspose, "aten", make<conv_transpose>);
ORTMODULE_KERNEL("ai.ortmodule", ConvTransposeGrad, "aten", make<conv_transpose_grad>);
ORTMODULE_KERNEL("com.microsoft", ConvTransposeGrad, "aten", make<conv_transpose_grad>);

}  // namespace ortmodule
