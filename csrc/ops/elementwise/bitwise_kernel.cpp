// ATen kernels of the bitwise operators.
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>

#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

template <at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)>
Kernel binary(const Node&) {
  return [](KernelContext& c) { c.out(0, compute(c.in(0), c.in(1))); };
}

ORTMODULE_KERNEL("", BitwiseAnd, "aten", binary<at::bitwise_and>);
ORTMODULE_KERNEL("", BitwiseOr, "aten", binary<at::bitwise_or>);
ORTMODULE_KERNEL("", BitwiseXor, "aten", binary<at::bitwise_xor>);
ORTMODULE_KERNEL("", BitwiseNot, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, at::bitwise_not(c.in(0))); }; });

}  // namespace
}  // namespace ortmodule
