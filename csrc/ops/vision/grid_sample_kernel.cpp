// ATen kernels of GridSample, AffineGrid and their gradients. One spatial axis is sampled as two with a height of 1.
#include <ATen/core/Tensor.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/affine_grid_generator_backward.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/grid_sampler_3d.h>
#include <ATen/ops/grid_sampler_3d_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// ATen numbers modes and paddings.
struct Sampling {
  int64_t mode, padding;
  bool align;

  explicit Sampling(const Node& node) : align(node.get_int("align_corners", 0) != 0) {
    const std::string m = node.get_string("mode", "linear"), p = node.get_string("padding_mode", "zeros");
    mode = m == "linear" || m == "bilinear" ? 0 : m == "nearest" ? 1 : m == "cubic" || m == "bicubic" ? 2 : -1;
    padding = p == "zeros" ? 0 : p == "border" ? 1 : p == "reflection" ? 2 : -1;
    ORTMODULE_CHECK_GRAPH(mode >= 0, "[GridSample] unknown mode '", m, "' (", node.describe(), ")");
    ORTMODULE_CHECK_GRAPH(padding >= 0, "[GridSample] unknown padding_mode '", p, "' (", node.describe(), ")");
  }

  // In float for half precision: positions of 8 bits are no positions.
  at::ScalarType checked_type(at::ScalarType type) const {
    ORTMODULE_CHECK(at::isFloatingType(type), kUnsupported, "[GridSample] X of type ", c10::toString(type),
                    " is not supported: only floating-point types are");
    return computed_in(type);
  }
};

struct Operands {
  at::Tensor x, grid;
  bool lifted;

  Operands(const Sampling& s, const at::Tensor& given_x, const at::Tensor& given_grid)
      : x(given_x.to(s.checked_type(given_x.scalar_type()))),
        grid(given_grid.to(x.scalar_type())),
        lifted(x.dim() == 3) {
    ORTMODULE_CHECK(x.dim() == grid.dim() && grid.size(-1) == x.dim() - 2 && x.size(0) == grid.size(0), kRuntime,
                    "[GridSample] a grid of shape ", given_grid.sizes(), " does not fit X of shape ", given_x.sizes());
    for (int64_t d : x.sizes().slice(2))
      ORTMODULE_CHECK(d > 0, kRuntime, "[GridSample] X of shape ", x.sizes(), " has nothing to read");
    ORTMODULE_CHECK(x.dim() < 5 || s.mode != 2, kUnsupported, "[GridSample] mode cubic is supported for images only");
    if (!lifted) return;
    x = x.unsqueeze(2);
    grid = at::stack({grid.select(-1, 0), at::zeros_like(grid.select(-1, 0))}, -1).unsqueeze(1);
  }
};

Kernel make_grid_sample(const Node& node) {
  return [s = Sampling(node)](KernelContext& c) {
    const Operands o(s, c.in(0), c.in(1));
    at::Tensor y = o.x.dim() == 4 ? at::grid_sampler_2d(o.x, o.grid, s.mode, s.padding, s.align)
                                  : at::grid_sampler_3d(o.x, o.grid, s.mode, s.padding, s.align);
    if (o.lifted) y = y.squeeze(2);
    c.out(0, y.to(c.in(0).scalar_type()));
  };
}

Kernel make_grid_sample_grad(const Node& node) {
  return [s = Sampling(node)](KernelContext& c) {
    const Operands o(s, c.in(1), c.in(2));
    at::Tensor dy = c.in(0).to(o.x.scalar_type());
    if (o.lifted) dy = dy.unsqueeze(2);
    const std::array<bool, 2> wanted{c.wants(0), c.wants(1)};
    auto [dx, dgrid] = o.x.dim() == 4
                           ? at::grid_sampler_2d_backward(dy, o.x, o.grid, s.mode, s.padding, s.align, wanted)
                           : at::grid_sampler_3d_backward(dy, o.x, o.grid, s.mode, s.padding, s.align, wanted);
    if (wanted[0]) c.out(0, (o.lifted ? dx.squeeze(2) : dx).to(c.in(1).scalar_type()));
    if (wanted[1]) c.out(1, (o.lifted ? dgrid.squeeze(1).slice(-1, 0, 1) : dgrid).to(c.in(2).scalar_type()));
  };
}

c10::IntArrayRef checked_size(c10::IntArrayRef size) {
  ORTMODULE_CHECK(size.size() == 4 || size.size() == 5, kRuntime, "[AffineGrid] size should be of 4 or 5 numbers, got ",
                  size.size());
  for (int64_t d : size) ORTMODULE_CHECK(d > 0, kRuntime, "[AffineGrid] a size of ", d);
  return size;
}

Kernel make_affine_grid(const Node& node) {
  return [align = node.get_int("align_corners", 0) != 0, sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef size = checked_size(sizes.read(c, storage));
    const auto n = static_cast<int64_t>(size.size()) - 2;
    const at::Tensor& theta = c.in(0);
    ORTMODULE_CHECK(theta.dim() == 3 && theta.size(0) == size[0] && theta.size(1) == n && theta.size(2) == n + 1,
                    kRuntime, "[AffineGrid] theta of shape ", theta.sizes(), " does not fit the size ", size);
    c.out(0, at::affine_grid_generator(theta, size, align));
  };
}

Kernel make_affine_grid_grad(const Node& node) {
  return [align = node.get_int("align_corners", 0) != 0, sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    c.out(0, at::affine_grid_generator_backward(c.in(0), checked_size(sizes.read(c, storage)), align));
  };
}

}  // namespace

ORTMODULE_KERNEL("", GridSample, "aten", make_grid_sample);
ORTMODULE_KERNEL("com.microsoft", GridSample, "aten", make_grid_sample);
ORTMODULE_KERNEL("ai.ortmodule", GridSampleGrad, "aten", make_grid_sample_grad);
ORTMODULE_KERNEL("", AffineGrid, "aten", make_affine_grid);
ORTMODULE_KERNEL("ai.ortmodule", AffineGridGrad, "aten", make_affine_grid_grad);

}  // namespace ortmodule
