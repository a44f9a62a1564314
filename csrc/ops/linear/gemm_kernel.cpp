// Kernels of Gemm and GemmGrad.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>

#include "kernels/kernel_context.h"
#include "products/matmul_provider.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor transposed_if(const at::Tensor& t, bool transpose) { return transpose ? t.t() : t; }

at::Tensor scaled(at::Tensor t, double alpha) {
  if (alpha != 1.0) t.mul_(alpha);
  return t;
}

Kernel make_gemm(const Node& node) {
  const double alpha = node.get_float("alpha", 1.0), beta = node.get_float("beta", 1.0);
  const bool ta = node.get_int("transA", 0) != 0, tb = node.get_int("transB", 0) != 0;
  return [=, constant = ConstantFactor::of(node, 1)](KernelContext& c) {
    const at::Tensor a = transposed_if(c.in(0), ta), b = transposed_if(c.in(1), tb);
    if (!c.has(2)) return c.out(0, scaled(matrix_product(a, b, constant.get()), alpha));
    const at::Tensor& bias = c.in(2);
    if (alpha == 1.0 && beta == 1.0 && bias.dim() == 1 && bias.size(0) == b.size(1))
      return c.out(0, linear_product(a, b.t(), bias, constant.get()));
    c.out(0, at::addmm(bias, a, b, beta, alpha));
  };
}

// Each product is written so that its result is contiguous in the operand's own layout.
Kernel make_gemm_grad(const Node& node) {
  const double alpha = node.get_float("alpha", 1.0);
  const bool ta = node.get_int("transA", 0) != 0, tb = node.get_int("transB", 0) != 0;
  return [=](KernelContext& c) {
    const at::Tensor& dy = c.in(0);
    if (c.wants(0)) {
      const at::Tensor& b = c.in(2);
      c.out(0, scaled(ta ? matrix_product(transposed_if(b, tb), dy.t()) : matrix_product(dy, transposed_if(b, !tb)),
                      alpha));
    }
    if (c.wants(1)) {
      const at::Tensor& a = c.in(1);
      c.out(1, scaled(tb ? matrix_product(dy.t(), transposed_if(a, ta)) : matrix_product(transposed_if(a, !ta), dy),
                      alpha));
    }
  };
}

}  // namespace

ORTMODULE_KERNEL("", Gemm, "aten", make_gemm);
ORTMODULE_KERNEL("ai.ortmodule", GemmGrad, "aten", make_gemm_grad);

}  // namespace ortmodule
