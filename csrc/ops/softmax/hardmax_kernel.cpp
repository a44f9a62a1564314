// ATen kernels of Hardmax.
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/host_values.h"
#include "records/kernel_registry.h"

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
});

}  // namespace
}  // namespace ortmodule
