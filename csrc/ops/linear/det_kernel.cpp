// ATen kernels of Det and its gradient. Half precision is computed in float.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_det.h>

#include "base/status.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"
#include "ops/recomputed_gradient.h"

namespace ortmodule {
namespace {

at::Tensor det(const at::Tensor& x) {
  ORTMODULE_CHECK(x.dim() >= 2 && x.size(-1) == x.size(-2), kRuntime, "[Det] X should be [..., M, M], got ", x.sizes());
  const at::ScalarType type = x.scalar_type();
  return at::linalg_det(x.to(type == at::kDouble ? at::kDouble : at::kFloat)).to(type);
}

ORTMODULE_KERNEL("", Det, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, det(c.in(0))); }; });
ORTMODULE_KERNEL("ai.ortmodule", DetGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    recomputed_gradient(c, {c.in(1)}, {0}, [](const std::vector<at::Tensor>& v) { return det(v[0]); });
  };
});

}  // namespace
}  // namespace ortmodule
