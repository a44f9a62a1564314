// ATen kernels of ArgMax, ArgMin and CumSum.
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

template <at::Tensor (*position)(const at::Tensor&, std::optional<int64_t>, bool)>
Kernel arg_extreme(const Node& node) {
  const int64_t axis = node.get_int("axis", 0);
  const bool keep = node.get_int("keepdims", 1) != 0;
  if (node.get_int("select_last_index", 0)) {
    // The last position is the first one of the reversed axis, counted from the end.
    return [axis, keep](KernelContext& c) {
      const at::Tensor& x = c.in(0);
      if (x.dim() == 0) return c.out(0, position(x, axis, keep));
      c.out(0, position(x.flip(axis), axis, keep).neg_().add_(x.size(axis) - 1));
    };
  }
  return [axis, keep](KernelContext& c) { c.out(0, position(c.in(0), axis, keep)); };
}

ORTMODULE_KERNEL("", ArgMax, "aten", arg_extreme<at::argmax>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", ArgMin, "aten", arg_extreme<at::argmin>).rare_types(RareTypes::kOrdered);

ORTMODULE_KERNEL("", CumSum, "aten", [](const Node& node) -> Kernel {
  const bool exclusive = node.get_int("exclusive", 0) != 0, reverse = node.get_int("reverse", 0) != 0;
  return [axis_input = HostInts(node, 1), exclusive, reverse](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t axis = axis_input.value(c, 0);
    at::Tensor y = reverse ? at::cumsum(x.flip(axis), axis, x.scalar_type()) : at::cumsum(x, axis, x.scalar_type());
    if (exclusive && x.dim() > 0 && x.size(axis) > 0) {
      at::Tensor shifted = at::zeros_like(y);
      const int64_t n = x.size(axis);
      shifted.narrow(axis, 1, n - 1).copy_(y.narrow(axis, 0, n - 1));
      y = std::move(shifted);
    }
    c.out(0, reverse ? y.flip(axis) : std::move(y));
  };
});

}  // namespace
}  // namespace ortmodule
