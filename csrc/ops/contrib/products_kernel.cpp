// ATen kernels of com.microsoft's fused products and sums.
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include "base/status.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

at::Tensor operand(const at::Tensor& t, bool trans, bool trans_batch) {
  at::Tensor out = trans_batch && t.dim() > 2 ? t.movedim(0, -2) : t;
  return trans && out.dim() > 1 ? out.transpose(-1, -2) : out;
}

TensorFunction fused_matmul(const Node& node) {
  const double alpha = node.get_float("alpha", 1);
  const bool a = node.get_int("transA", 0) != 0, b = node.get_int("transB", 0) != 0,
             batch_a = node.get_int("transBatchA", 0) != 0, batch_b = node.get_int("transBatchB", 0) != 0;
  return [=](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor y = at::matmul(operand(in[0], a, batch_a), operand(in[1], b, batch_b));
    return {alpha == 1 ? y : at::mul(y, alpha)};
  };
}

ORTMODULE_KERNEL("com.microsoft", TransposeMatMul, "aten", function_kernel_of<fused_matmul>);
ORTMODULE_KERNEL("com.microsoft", FusedMatMul, "aten", function_kernel_of<fused_matmul>);
ORTMODULE_KERNEL("ai.ortmodule", FusedMatMulGrad, "aten", rerun_kernel_of<fused_matmul>);

ORTMODULE_KERNEL("com.microsoft", ScaledSum, "aten", [](const Node& node) -> Kernel {
  const double first = node.get_float("scale_0", 1), second = node.get_float("scale_1", 1),
               third = node.get_float("scale_2", 1);
  return [=](KernelContext& c) {
    at::Tensor sum = at::mul(c.in(0), first).add_(c.in(1), second);
    c.out(0, c.has(2) ? sum.add_(c.in(2), third) : sum);
  };
});

}  // namespace
}  // namespace ortmodule
