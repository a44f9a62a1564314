// MatMulInteger and QLinearMatMul: matrix products of quantized operands. Integers have no gradient.
#include "base/status.h"
#include "ops/linear/matmul_shape.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// A[..., M, K], B[..., K, N] -> Y[..., M, N]; a zero point is a number, or one per row of A, per column of B.
ORTMODULE_OP("", MatMulInteger, 10)
    .input("A")
    .input("B")
    .optional_input("a_zero_point")
    .optional_input("b_zero_point")
    .output("Y")
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, DType::kInt32, matmul_shape(c, 0, 1)); });

ORTMODULE_OP("", QLinearMatMul, 10)
    .input("a")
    .input("a_scale")
    .input("a_zero_point")
    .input("b")
    .input("b_scale")
    .input("b_zero_point")
    .input("y_scale")
    .input("y_zero_point")
    .output("y")
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, c.dtype(7), matmul_shape(c, 0, 3)); });

}  // namespace
}  // namespace ortmodule
