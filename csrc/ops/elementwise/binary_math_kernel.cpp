// ATen kernels of the mathematics of two operands.
#include <ATen/ops/atan2.h>
#include <ATen/ops/hypot.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/xlogy.h>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// A number that the host holds is moved to the other operand: logaddexp takes none from there.
template <at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)>
Kernel binary_kernel(const Node&) {
  return [](KernelContext& c) {
    const at::Tensor &a = c.in(0), &b = c.in(1);
    if (a.device() == b.device()) return c.out(0, compute(a, b));
    c.out(0, a.is_cpu() ? compute(a.to(b.device()), b) : compute(a, b.to(a.device())));
  };
}

ORTMODULE_KERNEL("ai.ortmodule", Atan2, "aten", binary_kernel<at::atan2>);
ORTMODULE_KERNEL("ai.ortmodule", Hypot, "aten", binary_kernel<at::hypot>);
ORTMODULE_KERNEL("ai.ortmodule", LogAddExp, "aten", binary_kernel<at::logaddexp>);
ORTMODULE_KERNEL("ai.ortmodule", XLogY, "aten", binary_kernel<at::xlogy>);

}  // namespace
}  // namespace ortmodule
