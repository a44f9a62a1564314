// Kernel of DeformConv and its gradient: the columns of a convolution, read at shifted places, times the weights.
//
// Zhu et al., "Deformable ConvNets v2" (2019), equation 1.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>

#include "base/near_numbers.h"
#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

struct DeformAttributes {
  std::vector<int64_t> dilations, pads, strides;
  int64_t groups, offset_groups;

  explicit DeformAttributes(const Node& node)
      : dilations(node.get_ints("dilations", {1, 1})),
        pads(node.get_ints("pads", {0, 0, 0, 0})),
        strides(node.get_ints("strides", {1, 1})),
        groups(node.get_int("group", 1)),
        offset_groups(node.get_int("offset_group", 1)) {
    ORTMODULE_CHECK(dilations.size() == 2 && pads.size() == 4 && strides.size() == 2, kUnsupported,
                    "[DeformConv] only images, two spatial axes, are supported (", node.describe(), ")");
    ORTMODULE_CHECK_GRAPH(are_near(dilations) && are_near(pads) && are_near(strides),
                          "[DeformConv] an attribute has numbers that are too large (", node.describe(), ")");
    ORTMODULE_CHECK_GRAPH(groups > 0 && offset_groups > 0, "[DeformConv] group and offset_group should be positive (",
                          node.describe(), ")");
  }
};

// Where the taps of a kernel lie along one axis, without offsets: [taps, places].
at::Tensor undeformed(const at::Tensor& like, int64_t taps, int64_t places, int64_t dilation, int64_t stride,
                      int64_t pad) {
  return at::arange(taps, like.options())
      .mul_(static_cast<double>(dilation))
      .unsqueeze(1)
      .add(at::arange(places, like.options()).mul_(static_cast<double>(stride)).sub_(static_cast<double>(pad)));
}

// Elements of planes [planes, channels, h * w] at positions [planes, count], between elements linearly; outside are
// zeros. ATen's grid sampler would do, but its normalized positions cost digits.
at::Tensor read_at(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z, int64_t h, int64_t w) {
  const at::Tensor y0 = y.detach().floor(), z0 = z.detach().floor();
  const auto place = [](const at::Tensor& position, int64_t size) {
    return position.nan_to_num(0).clamp(0, static_cast<double>(size - 1)).to(at::kLong);
  };
  const auto inside = [](const at::Tensor& position, int64_t size) {
    return position.ge(0).logical_and_(position.lt(static_cast<double>(size)));
  };
  at::Tensor sum;
  for (int corner = 0; corner < 4; ++corner) {
    const at::Tensor row = y0.add(corner / 2), column = z0.add(corner % 2);
    const at::Tensor weight = y.sub(row).abs().neg().add(1).mul(z.sub(column).abs().neg().add(1));
    const at::Tensor seen = inside(row, h).logical_and_(inside(column, w));
    const at::Tensor index = place(row, h).mul_(w).add_(place(column, w)).unsqueeze(1);
    const at::Tensor values = x.gather(2, index.expand({x.size(0), x.size(1), y.size(1)}));
    const at::Tensor part = values.mul(weight.mul(seen).unsqueeze(1));
    sum = sum.defined() ? sum.add(part) : part;
  }
  return sum;
}

// inputs: X, W, offset, B (or undefined), mask (or undefined).
at::Tensor deform_conv(const std::vector<at::Tensor>& inputs, const DeformAttributes& a) {
  const at::ScalarType type = inputs[0].scalar_type();
  const at::ScalarType computed = computed_in(type);
  const at::Tensor x = inputs[0].to(computed), w = inputs[1].to(computed), offset = inputs[2].to(computed);
  ORTMODULE_CHECK(x.dim() == 4 && w.dim() == 4 && offset.dim() == 4, kUnsupported,
                  "[DeformConv] only images, two spatial axes, are supported, got X of shape ", x.sizes());
  const int64_t n = x.size(0), channels = x.size(1), h = x.size(2), width = x.size(3), og = a.offset_groups;
  const int64_t kh = w.size(2), kw = w.size(3), taps = kh * kw, oh = offset.size(2), ow = offset.size(3);
  const int64_t places = oh * ow, out_channels = w.size(0);
  ORTMODULE_CHECK(offset.size(0) == n && offset.size(1) == og * taps * 2 && channels % og == 0 &&
                      w.size(1) * a.groups == channels && out_channels % a.groups == 0 && h > 0 && width > 0,
                  kRuntime, "[DeformConv] X ", x.sizes(), ", W ", w.sizes(), " and offset ", offset.sizes(),
                  " do not fit group ", a.groups, " and offset_group ", og);
  const auto expected = [&](int axis, int64_t size, int64_t taps_of_axis) {
    return (size + a.pads[axis] + a.pads[axis + 2] - a.dilations[axis] * (taps_of_axis - 1) - 1) / a.strides[axis] + 1;
  };
  ORTMODULE_CHECK(a.strides[0] > 0 && a.strides[1] > 0 && expected(0, h, kh) == oh && expected(1, width, kw) == ow,
                  kRuntime, "[DeformConv] offsets for ", oh, " x ", ow, " places, the attributes give ",
                  expected(0, h, kh), " x ", expected(1, width, kw));
  const at::Tensor shift = offset.reshape({n * og, kh, kw, 2, oh, ow});
  const at::Tensor rows = undeformed(x, kh, oh, a.dilations[0], a.strides[0], a.pads[0]).view({1, kh, 1, oh, 1});
  const at::Tensor columns = undeformed(x, kw, ow, a.dilations[1], a.strides[1], a.pads[1]).view({1, 1, kw, 1, ow});
  const at::Tensor at_y = shift.select(3, 0).add(rows).reshape({n * og, taps * places});
  const at::Tensor at_x = shift.select(3, 1).add(columns).reshape({n * og, taps * places});
  at::Tensor read = read_at(x.reshape({n * og, channels / og, h * width}), at_y, at_x, h, width)
                        .view({n * og, channels / og, taps, places});
  if (inputs[4].defined()) {
    ORTMODULE_CHECK(inputs[4].numel() == n * og * taps * places, kRuntime, "[DeformConv] a mask of shape ",
                    inputs[4].sizes(), " does not fit the offset's ", offset.sizes());
    read = read.mul(inputs[4].to(computed).reshape({n * og, 1, taps, places}));
  }
  const int64_t depth = channels / a.groups * taps;
  at::Tensor y =
      at::matmul(w.reshape({1, a.groups, out_channels / a.groups, depth}), read.reshape({n, a.groups, depth, places}))
          .reshape({n, out_channels, oh, ow});
  if (inputs[3].defined()) y = y.add(inputs[3].to(computed).view({1, out_channels, 1, 1}));
  return y.to(type);
}

TensorFunction deform_conv_of(const Node& node) {
  return [a = DeformAttributes(node)](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
    in.resize(5);
    return {deform_conv(in, a)};
  };
}

}  // namespace

ORTMODULE_KERNEL("", DeformConv, "aten", function_kernel_of<deform_conv_of>);
ORTMODULE_KERNEL("ai.ortmodule", DeformConvGrad, "aten", rerun_kernel_of<deform_conv_of>);

}  // namespace ortmodule
