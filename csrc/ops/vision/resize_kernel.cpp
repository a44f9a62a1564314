// Kernels of Resize and ResizeGrad.
//
// The general way is a gather and a weighted sum per axis. Images whose last two axes change go to ATen's upsampling
// where it computes the same numbers: see Upsampling.
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bicubic2d_backward.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/host_doubles.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/vision/resize_plan.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// The inputs beside X, from slot `first` on.
struct Inputs {
  HostDoubles roi, scales;
  HostInts sizes;

  Inputs(const Node& node, size_t first) : roi(node, first), scales(node, first + 1), sizes(node, first + 2) {}

  ResizeRequest read(const KernelContext& c) const {
    c10::DimVector storage;
    ResizeRequest request{roi.read(c), scales.read(c), {}};
    const c10::IntArrayRef list = sizes.read(c, storage);
    if (request.scales.empty()) request.sizes = list.vec();
    return request;
  }
};

// ATen's upsampling of an image [N, C, H, W]; `fits` says whether it gives what the tables would.
struct Upsampling {
  bool fits = false, align = false;
  int64_t h = 0, w = 0;
  std::optional<double> scale_h, scale_w;

  Upsampling(const ResizeAttributes& a, const std::vector<ResizeAxis>& axes, c10::IntArrayRef x, at::ScalarType type) {
    if (x.size() != 4 || !at::isFloatingType(type) || a.antialias || a.exclude_outside || axes.empty()) return;
    align = a.coordinates == Coordinates::kAlignCorners;
    const bool half = a.coordinates == Coordinates::kHalfPixel || a.coordinates == Coordinates::kPytorchHalfPixel;
    const bool floors = a.coordinates == Coordinates::kAsymmetric && a.nearest == NearestMode::kFloor;
    if (a.mode == ResizeMode::kNearest ? !floors : !half && !align) return;
    if (a.mode == ResizeMode::kCubic && a.cubic_a != -0.75) return;
    h = x[2];
    w = x[3];
    scale_h = scale_w = 1.0;
    for (const ResizeAxis& r : axes) {
      if (r.axis < 2 || r.out < 2) return;
      // ATen multiplies by 1 / scale in float, which hits an element exactly for powers of two alone.
      int exponent = 0;
      if (a.mode == ResizeMode::kNearest && std::frexp(r.scale, &exponent) != 0.5) return;
      if (align && r.scale * static_cast<double>(r.in) != static_cast<double>(r.out)) return;
      (r.axis == 2 ? h : w) = r.out;
      (r.axis == 2 ? scale_h : scale_w) = r.scale;
    }
    fits = x[0] > 0 && x[1] > 0;
  }
};

at::Tensor upsample(const at::Tensor& x, ResizeMode mode, const Upsampling& u) {
  const std::array<int64_t, 2> size{u.h, u.w};
  if (mode == ResizeMode::kNearest) return at::upsample_nearest2d(x, size, u.scale_h, u.scale_w);
  if (mode == ResizeMode::kLinear) return at::upsample_bilinear2d(x, size, u.align, u.scale_h, u.scale_w);
  return at::upsample_bicubic2d(x, size, u.align, u.scale_h, u.scale_w);
}

at::Tensor upsample_backward(const at::Tensor& dy, c10::IntArrayRef x, ResizeMode mode, const Upsampling& u) {
  const std::array<int64_t, 2> size{u.h, u.w};
  if (mode == ResizeMode::kNearest) return at::upsample_nearest2d_backward(dy, size, x, u.scale_h, u.scale_w);
  if (mode == ResizeMode::kLinear) return at::upsample_bilinear2d_backward(dy, size, x, u.align, u.scale_h, u.scale_w);
  return at::upsample_bicubic2d_backward(dy, size, x, u.align, u.scale_h, u.scale_w);
}

// A table's numbers on the tensor's device.
struct DeviceTable {
  at::Tensor indices, weights;  // [taps, out]; weights undefined where elements are copied
  c10::DimVector along;         // the shape of one row of weights against the tensor

  DeviceTable(const ResizeTable& t, const ResizeAxis& r, const at::Tensor& like)
      : along(static_cast<size_t>(like.dim()), 1) {
    const auto taps = static_cast<int64_t>(t.taps);
    indices = at::tensor(t.indices, at::TensorOptions(at::kLong)).view({taps, r.out}).to(like.device());
    if (!t.weights.empty())
      weights = at::tensor(t.weights, at::TensorOptions(at::kDouble)).to(like.options()).view({taps, r.out});
    along[r.axis] = r.out;
  }
};

at::Tensor interpolate(const at::Tensor& x, const ResizeTable& t, const ResizeAxis& r) {
  const DeviceTable d(t, r, x);
  const auto axis = static_cast<int64_t>(r.axis);
  at::Tensor y = at::index_select(x, axis, d.indices[0]);
  if (!d.weights.defined()) return y;
  y.mul_(d.weights[0].view(d.along));
  for (int64_t k = 1; k < static_cast<int64_t>(t.taps); ++k)
    y.addcmul_(at::index_select(x, axis, d.indices[k]), d.weights[k].view(d.along));
  return y;
}

at::Tensor transposed(const at::Tensor& dy, const ResizeTable& t, const ResizeAxis& r) {
  const DeviceTable d(t, r, dy);
  const auto axis = static_cast<int64_t>(r.axis);
  c10::DimVector sizes(dy.sizes());
  sizes[r.axis] = r.in;
  at::Tensor dx = at::zeros(sizes, dy.options());
  for (int64_t k = 0; k < static_cast<int64_t>(t.taps); ++k)
    dx.index_add_(axis, d.indices[k], d.weights.defined() ? dy.mul(d.weights[k].view(d.along)) : dy);
  return dx;
}

at::Tensor outside_of(const ResizeTable& t, const at::Tensor& like) {
  return at::tensor(t.outside, at::TensorOptions(at::kLong)).to(like.device());
}

Kernel make_resize(const ResizeAttributes& a, const Inputs& inputs) {
  return [a, inputs](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const auto axes = resize_axes(a, x.sizes().vec(), inputs.read(c));
    const Upsampling u(a, axes, x.sizes(), x.scalar_type());
    if (u.fits) {
      c.out(0, upsample(x, a.mode, u));
      return;
    }
    const bool copies = a.mode == ResizeMode::kNearest;
    at::Tensor y = copies ? x : x.to(computed_in(x.scalar_type()));
    std::vector<ResizeTable> tables;
    for (const ResizeAxis& r : axes) {
      tables.push_back(resize_table(a, r));
      y = interpolate(y, tables.back(), r);
    }
    for (size_t k = 0; k < axes.size(); ++k)
      if (!tables[k].outside.empty())
        y.index_fill_(static_cast<int64_t>(axes[k].axis), outside_of(tables[k], y), a.extrapolation);
    y = y.to(x.scalar_type());
    c.out(0, y.is_same(x) ? x.clone() : std::move(y));
  };
}

// `has_x`: input 1 is X itself, not its sizes.
template <bool has_x>
Kernel make_resize_grad(const Node& node) {
  return [a = ResizeAttributes(node), inputs = Inputs(node, 2), sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef x = has_x ? c.in(1).sizes() : sizes.read(c, storage);
    at::Tensor dy = c.in(0);
    ResizeRequest request = inputs.read(c);
    if (request.scales.empty() && request.sizes.empty())
      for (const size_t axis : a.axes_of(static_cast<size_t>(dy.dim())))
        request.sizes.push_back(dy.size(static_cast<int64_t>(axis)));
    const auto axes = resize_axes(a, x.vec(), request);
    for (const ResizeAxis& r : axes)
      ORTMODULE_CHECK(dy.dim() == static_cast<int64_t>(x.size()) && dy.size(static_cast<int64_t>(r.axis)) == r.out,
                      kRuntime, "[ResizeGrad] dY of shape ", dy.sizes(), " does not fit X of ", x);
    const at::ScalarType type = dy.scalar_type();
    const Upsampling u(a, axes, x, type);
    if (u.fits) {
      c.out(0, upsample_backward(dy, x, a.mode, u));
      return;
    }
    dy = dy.to(computed_in(type));
    std::vector<ResizeTable> tables;
    for (const ResizeAxis& r : axes) {
      tables.push_back(resize_table(a, r));
      if (!tables.back().outside.empty())
        dy = dy.index_fill(static_cast<int64_t>(r.axis), outside_of(tables.back(), dy), 0);
    }
    for (size_t k = axes.size(); k-- > 0;) dy = transposed(dy, tables[k], axes[k]);
    c.out(0, axes.empty() ? dy.clone() : dy.to(type));
  };
}

}  // namespace

ORTMODULE_KERNEL("", Resize, "aten",
                 [](const Node& node) -> Kernel { return make_resize(ResizeAttributes(node), Inputs(node, 1)); });
ORTMODULE_KERNEL("ai.ortmodule", ResizeGrad, "aten", make_resize_grad<false>);
ORTMODULE_KERNEL("com.microsoft", ResizeGrad, "aten", make_resize_grad<true>);

}  // namespace ortmodule
