// Operators that ONNX Runtime's training graphs hold in com.microsoft: BiasDropout, SoftmaxDropoutGrad, ReduceAllL2,
// ConcatTraining, SplitTraining, ShrunkenGather, PadAndUnflatten, FlattenAndUnpad. Where no formula is shorter, the
// gradient runs the operator again.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// dropout(data + bias) + residual, with the mask of what was kept
ORTMODULE_OP("com.microsoft", BiasDropout, 1)
    .input("data")
    .input("bias")
    .optional_input("residual")
    .host_input("ratio", Presence::kOptional)
    .host_input("training_mode", Presence::kOptional)
    .output("output")
    .output("mask", Presence::kOptional)
    .attr("seed", AttrKind::kInt)
    .traits(kRandom)
    .infer([](InferContext& c) {
      c.same_as(0, 0);
      infer_mask(c, 1, 0);
    })
    .grad({"data", "bias", "residual"}, [](GradContext& c) {
      if (c.needs(0) || c.needs(1)) {
        NodeArg* dx = c.emit("ai.ortmodule::DropoutGrad", {c.GO(0), c.O(1), c.I(3), c.I(4)});
        c.GI(0, dx);
        if (c.needs(1)) c.GI(1, c.reduce_to(dx, c.I(1)));
      }
      c.GI(2, c.GO(0));
    });

// The gradient of dropout(softmax(x)) from the softmax's output and the mask.
ORTMODULE_OP("com.microsoft", SoftmaxDropoutGrad, 1)
    .input("dY")
    .input("mask")
    .input("softmax_Y")
    .host_input("ratio", Presence::kOptional)
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .infer(infer_same)
    .not_differentiable();

// The root of the sum of all squares of all inputs, a float.
ORTMODULE_OP("com.microsoft", ReduceAllL2, 1)
    .variadic_input("X")
    .output("Y")
    .infer([](InferContext& c) { c.out(0, DType::kFloat, Shape{}); })
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::ReduceAllL2Grad"); });
ORTMODULE_OP("ai.ortmodule", ReduceAllL2Grad, 1).apply(rerun_record);

ORTMODULE_OP("com.microsoft", ConcatTraining, 1)
    .variadic_input("inputs")
    .output("concat_result")
    .output("per_input_length", Presence::kOptional)
    .required_attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (c.input_count() == 0) c.error("at least one input is needed");
      std::optional<Shape> y;
      bool known = true;
      for (size_t i = 0; i < c.input_count() && known; ++i) {
        const Shape* x = c.shape(i);
        known = x && (!y || y->size() == x->size());
        if (!known) break;
        const size_t axis = c.axis(c.attr_int("axis", 0), x->size());
        if (!y)
          y = *x;
        else
          (*y)[axis] = (*y)[axis] + (*x)[axis];
      }
      c.out(0, c.dtype(0), known ? std::move(y) : std::nullopt);
      c.out(1, DType::kInt64, Shape{Dim(static_cast<int64_t>(c.input_count()))});
    })
    .grad({"inputs"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::ConcatTrainingGrad"); });
ORTMODULE_OP("ai.ortmodule", ConcatTrainingGrad, 1).apply(rerun_record);

ORTMODULE_OP("com.microsoft", SplitTraining, 1)
    .input("input")
    .host_input("split")
    .output("outputs", Presence::kVariadic)
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      const auto sizes = c.dims_value(1);
      const Shape unknown = c.fresh_shape(c.node().outputs().size());
      for (size_t i = 0; i < c.node().outputs().size(); ++i) {
        std::optional<Shape> y;
        if (x) {
          y = *x;
          (*y)[c.axis(c.attr_int("axis", 0), x->size())] = sizes && i < sizes->size() ? (*sizes)[i] : unknown[i];
        }
        c.out(i, c.dtype(0), std::move(y));
      }
    })
    .grad({"input"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SplitTrainingGrad"); });
ORTMODULE_OP("ai.ortmodule", SplitTrainingGrad, 1).apply(rerun_record);

// Rows of data along an axis, fewer than it has.
ORTMODULE_OP("com.microsoft", ShrunkenGather, 1)
    .input("data")
    .input("indices")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape *x = c.shape(0), *indices = c.shape_of_rank(1, 1);
      std::optional<Shape> y;
      if (x) {
        y = *x;
        (*y)[c.axis(c.attr_int("axis", 0), x->size())] = indices ? (*indices)[0] : c.fresh_dim();
      }
      c.out(0, c.dtype(0), std::move(y));
    })
    .no_grad({"indices"})
    .grad({"data"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::ShrunkenGatherGrad"); });
ORTMODULE_OP("ai.ortmodule", ShrunkenGatherGrad, 1).apply(rerun_record);

// Rows [n, ...] at `indices` of zeros [a * b, ...], as [a, b, ...] with unflatten_dims = (a, b).
ORTMODULE_OP("com.microsoft", PadAndUnflatten, 1)
    .input("input")
    .input("indices")
    .host_input("unflatten_dims")
    .output("output")
    .infer([](InferContext& c) {
      std::optional<Shape> y;
      if (const Shape* x = c.shape(0); x && !x->empty()) {
        const auto dims = c.dims_value(2);
        y = dims && dims->size() == 2 ? Shape{(*dims)[0], (*dims)[1]} : c.fresh_shape(2);
        y->insert(y->end(), x->begin() + 1, x->end());
      }
      c.out(0, c.dtype(0), std::move(y));
    })
    .no_grad({"indices"})
    .grad({"input"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::PadAndUnflattenGrad"); });
ORTMODULE_OP("ai.ortmodule", PadAndUnflattenGrad, 1).apply(rerun_record);

// The inverse: rows at `indices` of [a, b, ...] seen as [a * b, ...], and (a, b).
ORTMODULE_OP("com.microsoft", FlattenAndUnpad, 1)
    .input("input")
    .input("indices")
    .output("output")
    .output("unflatten_dims", Presence::kOptional)
    .infer([](InferContext& c) {
      std::optional<Shape> y;
      const Shape *x = c.shape(0), *indices = c.shape_of_rank(1, 1);
      if (x && x->size() < 2) c.error("input should have rank 2 at least");
      if (x) {
        y = Shape{indices ? (*indices)[0] : c.fresh_dim()};
        y->insert(y->end(), x->begin() + 2, x->end());
      }
      c.out(0, c.dtype(0), std::move(y));
      c.out(1, DType::kInt64, Shape{Dim(2)});
    })
    .no_grad({"indices"})
    .grad({"input"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::FlattenAndUnpadGrad"); });
ORTMODULE_OP("ai.ortmodule", FlattenAndUnpadGrad, 1).apply(rerun_record);

}  // namespace
}  // namespace ortmodule
