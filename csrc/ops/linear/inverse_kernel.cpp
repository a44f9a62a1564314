// ATen kernel of Inverse. Half precision is computed in float; a singular matrix is an error, as in torch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_inv.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("com.microsoft", Inverse, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    ORTMODULE_CHECK(x.dim() >= 2 && x.size(-1) == x.size(-2), kRuntime, "[Inverse] X should be [..., M, M], got ",
                    x.sizes());
    const at::ScalarType type = x.scalar_type();
    c.out(0, at::linalg_inv(x.to(computed_in(type))).to(type));
  };
});

}  // namespace ortmodule
