// ATen kernels of GatherElements, ScatterElements and OneHot.
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_reduce.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/index/positions.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", GatherElements, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  return
      [axis](KernelContext& c) { c.out(0, at::gather(c.in(0), axis, checked_positions(c.in(1), c.in(0).size(axis)))); };
});

ORTMODULE_KERNEL("ai.ortmodule", GatherElementsGrad, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 0);
  return [given, sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    const int64_t axis = positive_axis(given, static_cast<int64_t>(target.size()), "GatherElementsGrad");
    const at::Tensor positions = wrap_negative(c.in(1), target[static_cast<size_t>(axis)]);
    c.out(0, at::zeros(target, c.in(0).options()).scatter_add_(axis, positions, c.in(0)));
  };
});

ORTMODULE_KERNEL("", ScatterElements, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  const std::string reduction = node.get_string("reduction", "none");
  if (reduction == "none" || reduction == "add") {
    return [axis, adds = reduction == "add"](KernelContext& c) {
      const at::Tensor positions = checked_positions(c.in(1), c.in(0).size(axis));
      at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
      if (adds)
        y.scatter_add_(axis, positions, c.in(2));
      else
        y.scatter_(axis, positions, c.in(2));
      c.out(0, std::move(y));
    };
  }
  const char* how = reduction == "mul" ? "prod" : reduction == "max" ? "amax" : reduction == "min" ? "amin" : nullptr;
  ORTMODULE_CHECK_GRAPH(how, "[ScatterElements] unknown reduction '", reduction, "' (", node.describe(), ")");
  return [axis, how](KernelContext& c) {
    const at::Tensor positions = checked_positions(c.in(1), c.in(0).size(axis));
    c.out(0, at::scatter_reduce(c.in(0), axis, positions, c.in(2), how));
  };
}).inplace();

ORTMODULE_KERNEL("", OneHot, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", -1);
  return [given](KernelContext& c) {
    const at::Tensor indices = as_int64(c.in(0));
    const auto depth = static_cast<int64_t>(c.double_value(1));
    const int64_t axis = positive_axis(given, indices.dim() + 1, "OneHot");
    c10::DimVector along(static_cast<size_t>(indices.dim() + 1), 1);
    along[static_cast<size_t>(axis)] = depth;
    const at::Tensor classes = at::arange(depth, indices.options()).view(along);
    const at::Tensor column = wrap_negative(indices, depth).unsqueeze(axis);
    c.out(0, at::where(at::eq(column, classes), c.in(2).select(0, 1), c.in(2).select(0, 0)));
  };
});

}  // namespace
}  // namespace ortmodule
