// Gradient operators that ONNX Runtime's training graphs hold in com.microsoft, for graphs that it made. Ours hold the
// operators of ai.ortmodule, whose inputs have another order here and there.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void pointwise(OpRecord& r) { r.input("dY").input("X").output("dX").infer(infer_same).not_differentiable(); }
void biased(OpRecord& r) { r.input("dY").input("X").input("B").output("dX").infer(infer_same).not_differentiable(); }
void softmax(OpRecord& r) { r.apply(pointwise).attr("axis", AttrKind::kInt); }

void norm(OpRecord& r) {
  r.output("X_grad")
      .output("scale_grad", Presence::kOptional)
      .attr("axis", AttrKind::kInt)
      .infer(infer_like<1, 2, 2>)
      .not_differentiable();
}

// The output's shape are the elements of input `shape`, its type that of input `values`.
void infer_scattered(InferContext& c, size_t shape, size_t values) {
  std::optional<Shape> y;
  if (const auto dims = c.dims_value(shape)) y = Shape(dims->begin(), dims->end());
  c.out(0, c.dtype(values), std::move(y));
}

}  // namespace

// Of Relu, Sigmoid and Tanh the second input is the output.
ORTMODULE_OP("com.microsoft", ReluGrad, 1).apply(pointwise);
ORTMODULE_OP("com.microsoft", SigmoidGrad, 1).apply(pointwise);
ORTMODULE_OP("com.microsoft", TanhGrad, 1).apply(pointwise);
ORTMODULE_OP("com.microsoft", GeluGrad, 1).apply(pointwise);
ORTMODULE_OP("com.microsoft", FastGeluGrad, 1).apply(pointwise);
ORTMODULE_OP("com.microsoft", QuickGeluGrad, 1).apply(pointwise).attr("alpha", AttrKind::kFloat);
ORTMODULE_OP("com.microsoft", LeakyReluGrad, 1).apply(pointwise).attr("alpha", AttrKind::kFloat);
ORTMODULE_OP("com.microsoft", BiasGeluGrad_dX, 1).apply(biased);
ORTMODULE_OP("com.microsoft", BiasFastGeluGrad_dX, 1).apply(biased);

// The second input is the output. The dimensions from `axis` (1) on are one; with _13 it is one axis, the last.
ORTMODULE_OP("com.microsoft", SoftmaxGrad, 1).apply(softmax);
ORTMODULE_OP("com.microsoft", LogSoftmaxGrad, 1).apply(softmax);
ORTMODULE_OP("com.microsoft", SoftmaxGrad_13, 1).apply(softmax);
ORTMODULE_OP("com.microsoft", LogSoftmaxGrad_13, 1).apply(softmax);

ORTMODULE_OP("com.microsoft", DropoutGrad, 1)
    .input("dy")
    .input("mask")
    .host_input("ratio", Presence::kOptional)
    .host_input("training_mode", Presence::kOptional)
    .output("dx")
    .infer(infer_same)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", DivGrad, 1)
    .input("dY")
    .input("A")
    .input("B")
    .output("dA", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .infer(infer_like<1, 2>)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", LayerNormalizationGrad, 1)
    .input("Y_grad")
    .input("X")
    .input("scale")
    .input("mean")
    .input("inv_std_var")
    .apply(norm)
    .output("bias_grad", Presence::kOptional);
ORTMODULE_OP("com.microsoft", SimplifiedLayerNormalizationGrad, 1)
    .input("Y_grad")
    .input("X")
    .input("scale")
    .input("inv_std_var")
    .apply(norm);
// From the output instead of X and the mean.
ORTMODULE_OP("com.microsoft", InvertibleLayerNormalizationGrad, 1)
    .input("Y_grad")
    .input("Y")
    .input("scale")
    .input("bias")
    .input("inv_std_var")
    .apply(norm)
    .output("bias_grad", Presence::kOptional);

// dY added up at the places in a tensor of `shape` that it was taken from.
ORTMODULE_OP("com.microsoft", GatherGrad, 1)
    .host_input("shape")
    .input("indices")
    .input("dY")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) { infer_scattered(c, 0, 2); })
    .not_differentiable();
ORTMODULE_OP("com.microsoft", GatherElementsGrad, 1)
    .input("dY")
    .host_input("shape")
    .input("indices")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) { infer_scattered(c, 1, 0); })
    .not_differentiable();

}  // namespace ortmodule
