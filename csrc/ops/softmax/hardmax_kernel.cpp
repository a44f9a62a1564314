// ATen kernels of Hardmax.
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros_like.h>

#include "ops/host_values.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor hardmax(const at::Tensor& x, int64_t axis) {
  at::Tensor y = at::zeros_like(x, at::MemoryFormat::Contiguous);
  if (x.numel() == 0) return y;
  if (x.dim() == 0) return y.fill_(1);
  return y.scatter_(axis, at::argmax(x, axis, true), 1);
}

ORTMODULE_KERNEL("", Hardmax, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", -1)](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    c.out(0, hardmax(x, x.dim() == 0 ? 0 : positive_axis(axis, x.dim(), "Hardmax")));
  };
}).opset(13, 1 << 30);

ORTMODULE_KERNEL("", Hardmax, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 1)](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    if (x.numel() == 0 || x.dim() == 0) return c.out(0, hardmax(x, 0));
    // `axis` may be the rank: each element is a row of its own.
    const int64_t first = axis == x.dim() ? axis : positive_axis(axis, x.dim(), "Hardmax");
    int64_t rows = 1;
    for (int64_t i = 0; i < first; ++i) rows *= x.size(i);
    c.out(0, hardmax(x.reshape({rows, -1}), 1).view(x.sizes()));
  };
}).opset(1, 12);

}  // namespace
}  // namespace ortmodule
