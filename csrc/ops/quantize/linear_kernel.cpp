// ATen kernels of QuantizeLinear, DequantizeLinear, its gradient and DynamicQuantizeLinear.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/element_types.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Granularity {
  int64_t axis, block;
  std::string op, what;

  explicit Granularity(const Node& node)
      : axis(node.get_int("axis", 1)), block(node.get_int("block_size", 0)), op(node.op()), what(node.describe()) {}

  int64_t axis_of(const at::Tensor& x) const { return x.dim() == 1 ? 0 : positive_axis(axis, x.dim(), op.c_str()); }

  // A block that is longer than the axis ends with it.
  int64_t block_of(const at::Tensor& x, int64_t along) const {
    return std::min(block, std::max<int64_t>(x.size(along), 1));
  }

  // A scale or zero point as what broadcasts against x.
  at::Tensor spread(const at::Tensor& value, const at::Tensor& x) const {
    if (value.numel() == 1) return value.reshape({});
    ORTMODULE_CHECK(x.dim() > 0, kRuntime, "[", op, "] a number has one scale, got ", value.numel(), " (", what, ")");
    const int64_t along = axis_of(x);
    if (block == 0) {
      ORTMODULE_CHECK(value.dim() == 1 && value.size(0) == x.size(along), kRuntime, "[", op, "] expected ",
                      x.size(along), " scales and zero points for axis ", along, ", got shape ", value.sizes(), " (",
                      what, ")");
      c10::DimVector sizes(x.dim(), 1);
      sizes[along] = value.size(0);
      return value.view(sizes);
    }
    const int64_t size = block_of(x, along);
    bool fits = value.dim() == x.dim();
    for (int64_t i = 0; fits && i < x.dim(); ++i)
      fits = i == along ? value.size(i) * size >= x.size(i) : value.size(i) == x.size(i);
    ORTMODULE_CHECK(fits, kRuntime, "[", op, "] scales of shape ", value.sizes(), " do not cover data of shape ",
                    x.sizes(), " in blocks of ", block, " (", what, ")");
    return at::repeat_interleave(value, size, along).narrow(along, 0, x.size(along));
  }

  // The inverse for sums: `values` has x's sizes, the result the scale's.
  at::Tensor gathered(const at::Tensor& values, const at::Tensor& scale) const {
    if (scale.numel() == 1) return values.sum().reshape(scale.sizes());
    const int64_t along = axis_of(values);
    if (block == 0) {
      c10::DimVector sizes(values.dim(), 1);
      sizes[along] = values.size(along);
      return values.sum_to_size(sizes).reshape(scale.sizes());
    }
    const int64_t size = block_of(values, along);
    c10::DimVector pads(2 * (values.dim() - along), 0);
    pads.back() = scale.size(along) * size - values.size(along);
    const at::Tensor whole = pads.back() == 0 ? values : at::constant_pad_nd(values, pads);
    return whole.unflatten(along, {scale.size(along), size}).sum(along + 1);
  }
};

// What follows the division is computed in: more digits than float16 and float8 have.
at::ScalarType wide_type(DType dtype) { return dtype == DType::kDouble ? at::kDouble : at::kFloat; }

at::Tensor as_number(const at::Tensor& t, DType dtype, at::ScalarType type) {
  return decode_elements(t, dtype).to(type);
}

ORTMODULE_KERNEL("", QuantizeLinear, "aten", [](const Node& node) -> Kernel {
  const DType x_type = node.input(0)->type().dtype, scale_type = node.input(1)->type().dtype;
  const DType to = node.output(0)->type().dtype;
  const auto asked = static_cast<DType>(node.get_int("precision", 0));
  const DType divided_in = asked != DType::kUndefined ? asked : is_floating(scale_type) ? scale_type : DType::kFloat;
  const at::ScalarType precision = to_scalar_type(divided_in);
  const CastRules rules{node.get_int("saturate", 1) != 0, "nearest"};
  return [granularity = Granularity(node), x_type, scale_type, to, precision, rules, wide = wide_type(divided_in),
          range = small_integer_range(to)](KernelContext& c) {
    const at::Tensor x = as_number(c.in(0), x_type, precision), scale = as_number(c.in(1), scale_type, precision);
    at::Tensor y = at::div(x, granularity.spread(scale, x)).to(wide);
    if (range) y.round_();
    if (c.has(2)) y.add_(granularity.spread(as_number(c.in(2), to, wide), x));
    if (range) y.clamp_(range->first, range->second);
    c.out(0, encode_elements(y, to, rules));
  };
}).rare_types(RareTypes::kAsIs);

at::Tensor centered(const KernelContext& c, const Granularity& granularity, size_t x, size_t zero, DType dtype,
                    at::ScalarType type) {
  const at::Tensor numbers = as_number(c.in(x), dtype, type);
  return c.has(zero) ? numbers - granularity.spread(as_number(c.in(zero), dtype, type), numbers) : numbers;
}

ORTMODULE_KERNEL("", DequantizeLinear, "aten", [](const Node& node) -> Kernel {
  const DType x_type = node.input(0)->type().dtype, scale_type = node.input(1)->type().dtype;
  const at::ScalarType wide = wide_type(scale_type), to = to_scalar_type(node.output(0)->type().dtype);
  return [granularity = Granularity(node), x_type, scale_type, wide, to](KernelContext& c) {
    const at::Tensor x = centered(c, granularity, 0, 2, x_type, wide);
    c.out(0, at::mul(x, granularity.spread(as_number(c.in(1), scale_type, wide), x)).to(to));
  };
}).rare_types(RareTypes::kAsIs);

ORTMODULE_KERNEL("ai.ortmodule", DequantizeLinearGrad, "aten", [](const Node& node) -> Kernel {
  const DType x_type = node.input(1)->type().dtype;
  const at::ScalarType wide = wide_type(node.input(2)->type().dtype);
  return [granularity = Granularity(node), x_type, wide](KernelContext& c) {
    const at::Tensor x = centered(c, granularity, 1, 3, x_type, wide);
    const at::Tensor& scale = c.in(2);
    c.out(0, granularity.gathered(at::mul(x, c.in(0)), scale).to(scale.scalar_type()));
  };
}).rare_types(RareTypes::kAsIs);

// The range is stretched to hold 0, so that 0 is exact. A tensor of zeros alone has the scale 1.
ORTMODULE_KERNEL("", DynamicQuantizeLinear, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    ORTMODULE_CHECK(x.numel() > 0, kRuntime, "[DynamicQuantizeLinear] an empty tensor has no range");
    const at::Tensor low = at::amin(x).clamp_max_(0), high = at::amax(x).clamp_min_(0);
    const at::Tensor span = high - low;
    const at::Tensor scale = at::where(span == 0, at::scalar_tensor(1.0, span.options()), span / 255);
    const at::Tensor zero = (-low / scale).clamp_(0, 255).round_();
    c.out(0, at::div(x, scale).round_().add_(zero).clamp_(0, 255).to(at::kByte));
    c.out(1, scale);
    c.out(2, zero.to(at::kByte));
  };
});

}  // namespace
}  // namespace ortmodule
