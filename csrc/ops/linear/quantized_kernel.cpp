// Kernels of MatMulInteger and QLinearMatMul.
//
// Products of bytes and their sums are exact in double, whose matrix product every device has; torch's for integers is
// slow on CPUs and absent on GPUs, and float32's may round (TF32).
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/requantize.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor as_double(const at::Tensor& t, DType dtype) { return decode_elements(t, dtype).to(at::kDouble); }

// One number, one per row (of the left operand) or per column (of the right one), as what broadcasts.
at::Tensor spread(const at::Tensor& value, bool rows) {
  if (value.numel() == 1) return value.reshape({});
  return rows && value.dim() == 1 ? value.unsqueeze(-1) : value;
}

at::Tensor centered(const at::Tensor& x, const at::Tensor& zero, DType dtype, bool rows, const std::string& what) {
  const at::Tensor numbers = as_double(x, dtype);
  if (!zero.defined()) return numbers;
  at::Tensor out = numbers - spread(as_double(zero, dtype), rows);
  ORTMODULE_CHECK(out.sizes() == numbers.sizes(), kRuntime, "a zero point of shape ", zero.sizes(),
                  " does not fit an operand of shape ", x.sizes(), " (", what, ")");
  return out;
}

ORTMODULE_KERNEL("", MatMulInteger, "aten", [](const Node& node) -> Kernel {
  return [a_type = node.input(0)->type().dtype, b_type = node.input(1)->type().dtype,
          what = node.describe()](KernelContext& c) {
    const at::Tensor a = centered(c.in(0), c.in_or_undefined(2), a_type, true, what);
    const at::Tensor b = centered(c.in(1), c.in_or_undefined(3), b_type, false, what);
    c.out(0, at::matmul(a, b).to(at::kLong).to(at::kInt));
  };
});

ORTMODULE_KERNEL("", QLinearMatMul, "aten", [](const Node& node) -> Kernel {
  const DType a_type = node.input(0)->type().dtype, b_type = node.input(3)->type().dtype;
  return [a_type, b_type, y_type = node.input(7)->type().dtype, what = node.describe()](KernelContext& c) {
    const at::Tensor product =
        at::matmul(centered(c.in(0), c.in(2), a_type, true, what), centered(c.in(3), c.in(5), b_type, false, what));
    const at::Tensor factor = spread(c.in(1).to(at::kFloat), true) * spread(c.in(4).to(at::kFloat), false) /
                              spread(c.in(6).to(at::kFloat), true);
    c.out(0, requantized(product, factor, spread(as_double(c.in(7), y_type), true), y_type));
  };
}).rare_types(RareTypes::kAsIs);

}  // namespace
}  // namespace ortmodule
