// ATen kernels of Det and its gradient. Half precision is computed in float.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_det.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

at::Tensor det(const at::Tensor& x) {
  ORTMODULE_CHECK(x.dim() >= 2 && x.size(-1) == x.size(-2), kRuntime, "[Det] X should be [..., M, M], got ", x.sizes());
  const at::ScalarType type = x.scalar_type();
  return at::linalg_det(x.to(computed_in(type))).to(type);
}

TensorFunction det_of(const Node&) {
  return [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {det(in[0])}; };
}

ORTMODULE_KERNEL("", Det, "aten", function_kernel_of<det_of>);
ORTMODULE_KERNEL("ai.ortmodule", DetGrad, "aten", rerun_kernel_of<det_of>);

}  // namespace
}  // namespace ortmodule
