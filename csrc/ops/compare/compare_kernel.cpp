// ATen kernels of comparisons and boolean logic.
#include <ATen/ops/eq.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

template <at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)>
Kernel binary(const Node&) {
  return [](KernelContext& c) { c.out(0, compute(c.in(0), c.in(1))); };
}

// Boolean logic allocates its result beside its first operand: a number of the host goes to the other's device.
template <at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)>
Kernel logical(const Node&) {
  return [](KernelContext& c) {
    const at::Tensor &a = c.in(0), &b = c.in(1);
    c.out(0, compute(a.is_cpu() && a.dim() == 0 ? a.to(b.device()) : a, b));
  };
}

template <at::Tensor (*compute)(const at::Tensor&)>
Kernel unary(const Node&) {
  return [](KernelContext& c) { c.out(0, compute(c.in(0))); };
}

ORTMODULE_KERNEL("", Equal, "aten", binary<at::eq>);
ORTMODULE_KERNEL("", Less, "aten", binary<at::lt>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", LessOrEqual, "aten", binary<at::le>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", Greater, "aten", binary<at::gt>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", GreaterOrEqual, "aten", binary<at::ge>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", And, "aten", logical<at::logical_and>);
ORTMODULE_KERNEL("", Or, "aten", logical<at::logical_or>);
ORTMODULE_KERNEL("", Xor, "aten", logical<at::logical_xor>);
ORTMODULE_KERNEL("", Not, "aten", unary<at::logical_not>);
ORTMODULE_KERNEL("", IsNaN, "aten", unary<at::isnan>);

ORTMODULE_KERNEL("", IsInf, "aten", [](const Node& node) -> Kernel {
  const bool negative = node.get_int("detect_negative", 1), positive = node.get_int("detect_positive", 1);
  if (negative && positive) return unary<at::isinf>(node);
  if (!negative && !positive)
    return [](KernelContext& c) { c.out(0, at::zeros_like(c.in(0), c.in(0).options().dtype(at::kBool))); };
  const double infinity = std::numeric_limits<double>::infinity();
  return [which = positive ? infinity : -infinity](KernelContext& c) { c.out(0, at::eq(c.in(0), which)); };
});

}  // namespace
}  // namespace ortmodule
