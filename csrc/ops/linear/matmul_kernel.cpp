// Kernels of MatMul and MatMulGrad.
//
// The gradient of a product with a two-dimensional right operand (a weight) folds the left operand's batch into its
// rows, as the forward product does: one large product instead of a batch of them and a sum over the batch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "products/matmul_provider.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor as_rows(const at::Tensor& t) { return t.dim() == 2 ? t : t.flatten(0, -2); }
at::Tensor row_if_vector(const at::Tensor& t) { return t.dim() == 1 ? t.unsqueeze(0) : t; }
at::Tensor column_if_vector(const at::Tensor& t) { return t.dim() == 1 ? t.unsqueeze(1) : t; }

// Sums the batch dimensions that the forward product broadcast and drops the dimension a vector was given.
at::Tensor to_operand(const at::Tensor& grad, c10::IntArrayRef sizes, bool is_left) {
  if (grad.sizes() == sizes) return grad;
  if (sizes.size() > 1) return grad.sum_to_size(sizes);
  return grad.squeeze(is_left ? -2 : -1).sum_to_size(sizes);
}

Kernel make_matmul_grad(const Node& node) {
  const HostInts a_sizes(node, 3), b_sizes(node, 4);
  return [a_sizes, b_sizes](KernelContext& c) {
    c10::DimVector a_storage, b_storage;
    const c10::IntArrayRef a_shape = c.has(1) ? c.in(1).sizes() : a_sizes.read(c, a_storage);
    const c10::IntArrayRef b_shape = c.has(2) ? c.in(2).sizes() : b_sizes.read(c, b_storage);
    at::Tensor dy = c.in(0);
    if (b_shape.size() == 1) dy = dy.unsqueeze(-1);
    if (a_shape.size() == 1) dy = dy.unsqueeze(-2);
    const bool fold = b_shape.size() == 2 && a_shape.size() > 2;
    if (c.wants(0)) {
      const at::Tensor b = column_if_vector(c.in(2));
      if (fold)
        c.out(0, matrix_product(as_rows(dy), b.t()).view(a_shape));
      else
        c.out(0, to_operand(at::matmul(dy, b.transpose(-2, -1)), a_shape, true));
    }
    if (c.wants(1)) {
      const at::Tensor a = row_if_vector(c.in(1));
      if (fold)
        c.out(1, transposed_product(as_rows(a), as_rows(dy)));
      else
        c.out(1, to_operand(at::matmul(a.transpose(-2, -1), dy), b_shape, false));
    }
  };
}

}  // namespace

ORTMODULE_KERNEL("", MatMul, "aten", [](const Node& node) -> Kernel {
  return [constant = ConstantFactor::of(node, 1)](KernelContext& c) {
    const at::Tensor &a = c.in(0), &b = c.in(1);
    if (a.dim() < 2 || b.dim() != 2 || a.size(-1) != b.size(0)) return c.out(0, at::matmul(a, b));
    c.out(0, a.dim() == 2 ? matrix_product(a, b, constant.get()) : linear_product(a, b.t(), {}, constant.get()));
  };
});
ORTMODULE_KERNEL("ai.ortmodule", MatMulGrad, "aten", make_matmul_grad);

}  // namespace ortmodule
