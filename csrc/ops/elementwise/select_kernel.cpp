// ATen kernels of Where, Identity, StopGradient and WithValue.
#include <ATen/ops/where.h>

#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Where, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::where(c.in(0), c.in(1), c.in(2))); };
});

Kernel pass_on(const Node&) {
  return [](KernelContext& c) { c.out(0, c.in(0)); };
}

ORTMODULE_KERNEL("", Identity, "aten", pass_on);
ORTMODULE_KERNEL("ai.ortmodule", StopGradient, "aten", pass_on);
ORTMODULE_KERNEL("ai.ortmodule", WithValue, "aten", pass_on);

}  // namespace
}  // namespace ortmodule
