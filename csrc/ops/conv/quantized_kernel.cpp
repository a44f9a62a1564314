// Kernels of ConvInteger and QLinearConv: in double, in which products of bytes and their sums are exact.
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/requantize.h"
#include "ops/conv/conv_pads.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// One number, or one per channel, as what broadcasts along dimension `channel` of a tensor like `x`.
at::Tensor spread(const at::Tensor& value, int64_t channel, const at::Tensor& x, const std::string& what) {
  if (value.numel() == 1) return value.reshape({});
  ORTMODULE_CHECK(value.dim() == 1 && value.size(0) == x.size(channel), kRuntime,
                  "a scale, zero point or bias of shape ", value.sizes(), " is neither a number nor one of ",
                  x.size(channel), " channels (", what, ")");
  c10::DimVector sizes(x.dim(), 1);
  sizes[channel] = value.size(0);
  return value.view(sizes);
}

at::Tensor centered(const at::Tensor& x, const at::Tensor& zero, const std::string& what) {
  const at::Tensor numbers = x.to(at::kDouble);
  return zero.defined() ? numbers - spread(zero.to(at::kDouble), 0, x, what) : numbers;
}

// Padding comes after the zero point is taken off: what is padded counts as zero.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& declared,
                     const std::string& what) {
  ORTMODULE_CHECK(x.dim() >= 3 && x.dim() == w.dim(), kRuntime,
                  "x should be [N, C, d...] and w [M, C / group, k...], "
                  "got shapes ",
                  x.sizes(), " and ", w.sizes(), " (", what, ")");
  const ConvAttributes a = conv_attributes(declared, x, w);
  const std::vector<int64_t> none(static_cast<size_t>(x.dim() - 2), 0);
  ORTMODULE_CHECK(a.fits(none.size()), kRuntime, "an attribute does not have ", none.size(), " numbers per end (", what,
                  ")");
  return at::convolution(at::constant_pad_nd(x, aten_pads(a, false)), w, {}, a.strides, none, a.dilations, false, none,
                         a.group);
}

ConvAttributes attributes(const Node& node, size_t w) {
  const auto& shape = node.input(w)->type().shape;
  const size_t rank = shape && shape->size() > 2 ? shape->size() - 2 : node.get_ints("kernel_shape", {1, 1}).size();
  return ConvAttributes(node, rank);
}

ORTMODULE_KERNEL("", ConvInteger, "aten", [](const Node& node) -> Kernel {
  return [a = attributes(node, 1), what = node.describe()](KernelContext& c) {
    const at::Tensor x = centered(c.in(0), c.in_or_undefined(2), what),
                     w = centered(c.in(1), c.in_or_undefined(3), what);
    c.out(0, convolved(x, w, a, what).to(at::kLong).to(at::kInt));
  };
});

ORTMODULE_KERNEL("", QLinearConv, "aten", [](const Node& node) -> Kernel {
  return [a = attributes(node, 3), to = node.input(7)->type().dtype, what = node.describe()](KernelContext& c) {
    at::Tensor sum = convolved(centered(c.in(0), c.in(2), what), centered(c.in(3), c.in(5), what), a, what);
    if (c.has(8)) sum.add_(spread(c.in(8).to(at::kDouble), 1, sum, what));
    const at::Tensor factor =
        spread(c.in(1), 1, sum, what) * spread(c.in(4), 1, sum, what) / spread(c.in(6), 1, sum, what);
    const at::Tensor zero = spread(c.in(7).to(at::kDouble), 1, sum, what);
    c.out(0, requantized(std::move(sum), factor, zero, to));
  };
});

}  // namespace
}  // namespace ortmodule
