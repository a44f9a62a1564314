// Kernels of the optional operators.
#include <ATen/ops/scalar_tensor.h>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Optional, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, c.in_or_undefined(0)); }; });

ORTMODULE_KERNEL("", OptionalHasElement, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::scalar_tensor(c.has(0) && c.in(0).defined(), at::kBool)); };
});

ORTMODULE_KERNEL("", OptionalGetElement, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    ORTMODULE_CHECK(c.in(0).defined(), kRuntime, "[OptionalGetElement] the optional is empty");
    c.out(0, c.in(0));
  };
});

}  // namespace
}  // namespace ortmodule
