// com.microsoft's SimplifiedLayerNormalization (also known as RMSNorm; models hold it in ai.onnx as well) and
// BiasSoftmax. Gradients run the operator again. Not here: normalizations of sums (ops/norm/skip_norm.cpp).
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// Mean and inverse deviation of each row: x's sizes with the normalized axes as ones, in float at least.
void infer_statistics(InferContext& c, size_t first, size_t count, const Shape* x, int64_t axis) {
  std::optional<Shape> stats;
  if (x) {
    stats = *x;
    for (size_t i = c.axis(axis, x->size()); i < x->size(); ++i) (*stats)[i] = 1;
  }
  for (size_t i = first; i < first + count; ++i)
    c.out(i, is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0), stats);
}

void simplified(OpRecord& r) {
  r.input("X")
      .input("scale")
      .output("Y")
      .output("inv_std_var", Presence::kOptional)
      .attr("axis", AttrKind::kInt)
      .attr("epsilon", AttrKind::kFloat)
      .attr("stash_type", AttrKind::kInt)
      .infer([](InferContext& c) {
        c.same_as(0, 0);
        infer_statistics(c, 1, 1, c.shape(0), c.attr_int("axis", -1));
      })
      .grad({"X", "scale"},
            [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SimplifiedLayerNormalizationGrad"); });
}

}  // namespace

ORTMODULE_OP("", SimplifiedLayerNormalization, 1).apply(simplified);
ORTMODULE_OP("com.microsoft", SimplifiedLayerNormalization, 1).apply(simplified);
ORTMODULE_OP("ai.ortmodule", SimplifiedLayerNormalizationGrad, 1).apply(rerun_record);

// softmax(data + bias) over all axes from `axis` on; the bias broadcasts to data.
ORTMODULE_OP("com.microsoft", BiasSoftmax, 1)
    .input("data")
    .input("bias")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .required_attr("is_inner_broadcast", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (const Shape* x = c.shape(0)) c.axis(c.attr_int("axis", 1), x->size());
      c.same_as(0, 0);
    })
    .grad({"data", "bias"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::BiasSoftmaxGrad"); });
ORTMODULE_OP("ai.ortmodule", BiasSoftmaxGrad, 1).apply(rerun_record);

}  // namespace ortmodule
