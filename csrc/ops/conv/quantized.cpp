// ConvInteger and QLinearConv: convolutions of quantized operands. Integers have no gradient.
#include "ops/conv/conv_shape.h"

namespace ortmodule {
namespace {

// x[N, C, d...], w[M, C / group, k...] -> y[N, M, o...]; the filter's zero point is a number or one per output channel.
ORTMODULE_OP("", ConvInteger, 10)
    .input("x")
    .input("w")
    .optional_input("x_zero_point")
    .optional_input("w_zero_point")
    .output("y")
    .apply(conv_attributes)
    .not_differentiable()
    .infer([](InferContext& c) { infer_convolution(c, 0, 1, DType::kInt32); });

// B[M] is int32 with the scale x_scale w_scale and the zero point 0.
ORTMODULE_OP("", QLinearConv, 10)
    .input("x")
    .input("x_scale")
    .input("x_zero_point")
    .input("w")
    .input("w_scale")
    .input("w_zero_point")
    .input("y_scale")
    .input("y_zero_point")
    .optional_input("B")
    .output("y")
    .apply(conv_attributes)
    .not_differentiable()
    .infer([](InferContext& c) { infer_convolution(c, 0, 3, c.dtype(7)); });

}  // namespace
}  // namespace ortmodule
