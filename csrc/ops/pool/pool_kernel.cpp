// Kernels of pooling and its gradients.
//
// One spatial dimension is handled as two with a height of 1. Pads that ATen does not take are put on the input first:
// -inf for the maximum, 0 for the mean.
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/avg_pool3d_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices_backward.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/pool/dilated_mean.h"
#include "ops/pool/max_channels.h"
#include "ops/pool/max_planes.h"
#include "ops/pool/window.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// A one-dimensional pool as a two-dimensional one.
PoolAttributes lifted(PoolAttributes a) {
  if (a.rank() != 1) return a;
  a.kernel.insert(a.kernel.begin(), 1);
  a.strides.insert(a.strides.begin(), 1);
  a.dilations.insert(a.dilations.begin(), 1);
  a.pads = {0, a.pads[0], 0, a.pads[1]};
  return a;
}
at::Tensor lifted(const at::Tensor& t) { return t.dim() == 3 ? t.unsqueeze(2) : t; }
at::Tensor lowered(const at::Tensor& t, bool lift) { return lift ? t.squeeze(2) : t; }

c10::DimVector lifted_sizes(c10::IntArrayRef sizes) {
  c10::DimVector out(sizes);
  if (out.size() == 3) out.insert(out.begin() + 2, 1);
  return out;
}

c10::IntArrayRef begins(const PoolAttributes& a) { return c10::IntArrayRef(a.pads).slice(0, a.rank()); }

// What a run pools: attributes with auto_pad resolved, the sizes of X, and whether X is padded by hand.
struct Plan {
  PoolAttributes a;
  std::vector<int64_t> padding;  // given to ATen
  c10::DimVector sizes;          // of what ATen pools
  bool by_hand;

  Plan(const PoolAttributes& attributes, c10::IntArrayRef x_sizes) : a(attributes), sizes(x_sizes), by_hand(false) {
    a.resolve_same(x_sizes.data() + 2);
    by_hand = !a.native_pads();
    padding = by_hand ? std::vector<int64_t>(a.rank(), 0) : begins(a).vec();
    if (by_hand)
      for (size_t i = 0; i < a.rank(); ++i) sizes[i + 2] += a.pads[i] + a.pads[i + a.rank()];
  }
  at::Tensor padded(const at::Tensor& x, double value) const {
    return by_hand ? at::constant_pad_nd(x, a.aten_pads(), value) : x;
  }
  at::Tensor cut(const at::Tensor& dx) const { return by_hand ? at::constant_pad_nd(dx, a.aten_pads(-1)) : dx; }
};

// A tensor of the given sizes for backward functions that look at nothing else; it has one element of memory.
at::Tensor of_sizes(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({1}, options).expand(sizes);
}

// Positions within a (padded) plane become positions within all of X; column-major ones count the plane's first axis
// fastest.
at::Tensor flat_indices(const at::Tensor& plane, const Plan& plan, c10::IntArrayRef x, bool column_major) {
  at::Tensor rest = plane, flat = at::mul(plane, 0);
  int64_t stride = 1;
  for (int64_t size : x.slice(2)) stride *= size;
  const int64_t plane_size = stride;
  int64_t inner = 1;
  for (size_t i = plan.a.rank(); i-- > 0;) {
    const int64_t size = plan.sizes[i + 2];
    at::Tensor coordinate = rest.remainder(size);
    if (plan.by_hand) coordinate = coordinate.sub(plan.a.pads[i]);
    rest = at::div(rest, size, "floor");
    stride /= x[i + 2];  // what the axes in front of this one span
    flat = flat.add(coordinate, column_major ? stride : inner);
    inner *= x[i + 2];
  }
  std::vector<int64_t> plane_shape(plane.dim(), 1);
  plane_shape[0] = x[0];
  plane_shape[1] = x[1];
  return flat.add_(at::arange(x[0] * x[1], plane.options()).view(plane_shape).mul_(plane_size));
}

Kernel make_max_pool(const Node& node) {
  const bool column_major = node.get_int("storage_order", 0) != 0;
  return [declared = lifted(PoolAttributes(node)), column_major](KernelContext& c) {
    const bool lift = c.in(0).dim() == 3;
    const at::Tensor x = lifted(c.in(0));
    const Plan plan(declared, x.sizes());
    const PoolAttributes& a = plan.a;
    const at::Tensor input = plan.padded(x, -std::numeric_limits<double>::infinity());
    if (!c.wants(1) && !c.wants(2))
      if (const at::Tensor y = max_of_channels(input, a, plan.padding); y.defined()) return c.out(0, lowered(y, lift));
    auto [y, indices] = max_of_planes(input, a, plan.padding);
    if (!y.defined())
      std::tie(y, indices) =
          a.rank() == 2 ? at::max_pool2d_with_indices(input, a.kernel, a.strides, plan.padding, a.dilations, a.ceil)
                        : at::max_pool3d_with_indices(input, a.kernel, a.strides, plan.padding, a.dilations, a.ceil);
    c.out(0, lowered(y, lift));
    if (c.wants(1)) c.out(1, lowered(flat_indices(indices, plan, x.sizes(), column_major), lift));
    if (c.wants(2)) c.out(2, lowered(indices, lift));
  };
}

// ATen adds to where the indices say. Those of a MaxPool need no look.
void check_indices(const at::Tensor& indices, c10::IntArrayRef sizes) {
  if (indices.numel() == 0) return;
  const int64_t plane = c10::multiply_integers(sizes.slice(2));
  const auto [least, most] = at::aminmax(indices);
  ORTMODULE_CHECK(least.item().toLong() >= 0 && most.item().toLong() < plane, kRuntime, "[MaxPoolGrad] indices from ",
                  least.item().toLong(), " to ", most.item().toLong(), " for planes of ", plane, " elements");
}

// Stands for the input, of which ATen takes sizes and the order of elements and reads nothing. CUDA's kernels take it
// as it lies, and would copy one without memory of its own.
at::Tensor of_input(c10::IntArrayRef sizes, const at::Tensor& dy) {
  if (dy.is_cpu()) return of_sizes(sizes, dy.options());
  const bool last = dy.dim() == 4 && dy.is_contiguous(at::MemoryFormat::ChannelsLast) && !dy.is_contiguous();
  return at::empty(sizes, dy.options(), last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

Kernel make_max_pool_grad(const Node& node) {
  const Node* const maker = node.input(1) ? node.input(1)->producer() : nullptr;
  return [trusted = maker && maker->qualified_op() == "MaxPool", declared = lifted(PoolAttributes(node)),
          sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const bool lift = c.in(0).dim() == 3;
    const at::Tensor dy = lifted(c.in(0));
    const Plan plan(declared, lifted_sizes(sizes.read(c, storage)));
    const PoolAttributes& a = plan.a;
    const at::Tensor like = of_input(plan.sizes, dy);
    const at::Tensor indices = lifted(c.in(1));
    if (!trusted) check_indices(indices, plan.sizes);
    const at::Tensor dx = a.rank() == 2
                              ? at::max_pool2d_with_indices_backward(dy, like, a.kernel, a.strides, plan.padding,
                                                                     a.dilations, a.ceil, indices)
                              : at::max_pool3d_with_indices_backward(dy, like, a.kernel, a.strides, plan.padding,
                                                                     a.dilations, a.ceil, indices);
    c.out(0, lowered(plan.cut(dx), lift));
  };
}

struct MeanOptions {
  PoolAttributes declared;
  bool include_pad, dilated = false;

  explicit MeanOptions(const Node& node)
      : declared(lifted(PoolAttributes(node))), include_pad(node.get_int("count_include_pad", 0) != 0) {
    for (int64_t d : declared.dilations) dilated = dilated || d != 1;
  }
};

at::Tensor mean_pool(const at::Tensor& x, const Plan& plan, bool include_pad) {
  const PoolAttributes& a = plan.a;
  return a.rank() == 2 ? at::avg_pool2d(x, a.kernel, a.strides, plan.padding, a.ceil, include_pad, std::nullopt)
                       : at::avg_pool3d(x, a.kernel, a.strides, plan.padding, a.ceil, include_pad, std::nullopt);
}

// With pads put on by hand the mean counts them; where it must not, the share of real elements is divided out.
at::Tensor real_share(const Plan& plan, c10::IntArrayRef x, const at::TensorOptions& options) {
  std::vector<int64_t> one = x.vec();
  one[0] = one[1] = 1;
  return mean_pool(plan.padded(at::ones(one, options), 0), plan, true);
}

// ATen's means of 16-bit cubes have no kernel on the CPU; they are taken in float and rounded once.
bool needs_float(const at::Tensor& t) {
  return t.dim() == 5 && t.is_cpu() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16);
}

at::Tensor average_pool(const at::Tensor& given, const MeanOptions& o) {
  if (needs_float(given)) return average_pool(given.to(at::kFloat), o).to(given.scalar_type());
  const bool lift = given.dim() == 3;
  const at::Tensor x = lifted(given);
  const Plan plan(o.declared, x.sizes());
  if (o.dilated) return lowered(dilated_mean(x, plan.a, o.include_pad), lift);
  at::Tensor y = mean_pool(plan.padded(x, 0), plan, plan.by_hand || o.include_pad);
  if (plan.by_hand && !o.include_pad) y.div_(real_share(plan, x.sizes(), x.options()));
  return lowered(y, lift);
}

Kernel make_average_pool(const Node& node) {
  return [o = MeanOptions(node)](KernelContext& c) { c.out(0, average_pool(c.in(0), o)); };
}

at::Tensor average_pool_grad(const at::Tensor& given, c10::IntArrayRef x, const MeanOptions& o) {
  if (needs_float(given)) return average_pool_grad(given.to(at::kFloat), x, o).to(given.scalar_type());
  const bool lift = given.dim() == 3;
  at::Tensor dy = lifted(given);
  const c10::DimVector x_sizes = lifted_sizes(x);
  const Plan plan(o.declared, x_sizes);
  const PoolAttributes& a = plan.a;
  if (o.dilated) return lowered(dilated_mean_grad(dy, x_sizes, a, o.include_pad), lift);
  if (plan.by_hand && !o.include_pad) dy = at::div(dy, real_share(plan, x_sizes, dy.options()));
  const bool include = plan.by_hand || o.include_pad;
  const at::Tensor like = of_sizes(plan.sizes, dy.options());
  const at::Tensor dx =
      a.rank() == 2
          ? at::avg_pool2d_backward(dy, like, a.kernel, a.strides, plan.padding, a.ceil, include, std::nullopt)
          : at::avg_pool3d_backward(dy, like, a.kernel, a.strides, plan.padding, a.ceil, include, std::nullopt);
  return lowered(plan.cut(dx), lift);
}

Kernel make_average_pool_grad(const Node& node) {
  return [o = MeanOptions(node), sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    c.out(0, average_pool_grad(c.in(0), sizes.read(c, storage), o));
  };
}

// The sizes of X, where only the graph's declaration of dX tells them.
class DeclaredSizes {
 public:
  explicit DeclaredSizes(const Node& node) : name_("[" + node.op() + "] (" + node.describe() + ")") {
    const auto& shape = node.output(0)->type().shape;
    for (size_t i = 2; shape && i < shape->size(); ++i)
      spatial_.push_back((*shape)[i].is_known() ? (*shape)[i].value() : -1);
  }

  c10::DimVector read(const at::Tensor& dy) const {
    ORTMODULE_CHECK(dy.dim() == static_cast<int64_t>(spatial_.size()) + 2 &&
                        std::all_of(spatial_.begin(), spatial_.end(), [](int64_t d) { return d >= 0; }),
                    kRuntime, name_, " needs the sizes of X as numbers: the graph should declare the shape of dX");
    c10::DimVector sizes(dy.sizes().slice(0, 2));
    sizes.append(spatial_.begin(), spatial_.end());
    return sizes;
  }

 private:
  std::string name_;
  std::vector<int64_t> spatial_;
};

// dY added up at flat positions; column-major ones count the plane's first axis fastest.
at::Tensor scatter_to_positions(const at::Tensor& dy, const at::Tensor& indices, c10::IntArrayRef x,
                                bool column_major) {
  std::vector<int64_t> order{0, 1}, sizes(x.begin(), x.end());
  for (size_t i = x.size(); i-- > 2;) order.push_back(static_cast<int64_t>(i));
  if (column_major) std::reverse(sizes.begin() + 2, sizes.end());
  const at::Tensor dx = at::zeros(sizes, dy.options());
  dx.view({-1}).index_add_(0, indices.reshape({-1}), dy.reshape({-1}));
  return column_major ? dx.permute(order).contiguous() : dx;
}

c10::DimVector spatial_axes(const at::Tensor& x) {
  c10::DimVector axes;
  for (int64_t i = 2; i < x.dim(); ++i) axes.push_back(i);
  return axes;
}

void global_average_grad(KernelContext& c, const HostInts& sizes) {
  c10::DimVector storage;
  const c10::IntArrayRef x = sizes.read(c, storage);
  int64_t count = 1;
  for (int64_t d : x.slice(2)) count *= d;
  c.out(0, at::div(c.in(0), static_cast<double>(count)).expand(x));
}

void global_max_grad(KernelContext& c) {
  at::Tensor mask = at::eq(c.in(1), c.in(2)).to(c.in(0).scalar_type());
  const at::Tensor share = at::div(c.in(0), at::sum(mask, spatial_axes(mask), true));
  c.out(0, mask.mul_(share));
}

}  // namespace

ORTMODULE_KERNEL("", MaxPool, "aten", make_max_pool);
ORTMODULE_KERNEL("ai.ortmodule", MaxPoolGrad, "aten", make_max_pool_grad);
ORTMODULE_KERNEL("", AveragePool, "aten", make_average_pool);
ORTMODULE_KERNEL("ai.ortmodule", AveragePoolGrad, "aten", make_average_pool_grad);
ORTMODULE_KERNEL("com.microsoft", AveragePoolGrad, "aten", [](const Node& node) -> Kernel {
  return [o = MeanOptions(node), sizes = DeclaredSizes(node)](KernelContext& c) {
    c.out(0, average_pool_grad(c.in(0), sizes.read(c.in(0)), o));
  };
});
ORTMODULE_KERNEL("com.microsoft", MaxPoolGrad, "aten", [](const Node& node) -> Kernel {
  const bool column_major = node.get_int("storage_order", 0) != 0;
  return [sizes = DeclaredSizes(node), column_major](KernelContext& c) {
    ORTMODULE_CHECK(c.in(0).sizes() == c.in(1).sizes(), kRuntime, "[MaxPoolGrad] dY of shape ", c.in(0).sizes(),
                    " and Indices of shape ", c.in(1).sizes(), " should be alike");
    c.out(0, scatter_to_positions(c.in(0), c.in(1), sizes.read(c.in(0)), column_major));
  };
});
ORTMODULE_KERNEL("", GlobalAveragePool, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::mean(c.in(0), spatial_axes(c.in(0)), true)); };
});
ORTMODULE_KERNEL("ai.ortmodule", GlobalAveragePoolGrad, "aten", [](const Node& node) -> Kernel {
  return [sizes = HostInts(node, 1)](KernelContext& c) { global_average_grad(c, sizes); };
});
ORTMODULE_KERNEL("", GlobalMaxPool, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::amax(c.in(0), spatial_axes(c.in(0)), true)); };
});
ORTMODULE_KERNEL("ai.ortmodule", GlobalMaxPoolGrad, "aten", [](const Node&) -> Kernel { return global_max_grad; });

}  // namespace ortmodule
