// com.microsoft's normalizations: SkipLayerNormalization, SkipSimplifiedLayerNormalization,
// SimplifiedLayerNormalization (also known as RMSNorm; models hold it in ai.onnx as well), EmbedLayerNormalization,
// BiasSoftmax. Gradients run the operator again.
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

void infer_skip(InferContext& c) {
  c.same_as(0, 0);
  infer_statistics(c, 1, 2, c.shape(0), -1);
  c.same_as(3, 0);
}

void skip_outputs(OpRecord& r) {
  r.output("output")
      .output("mean", Presence::kOptional)
      .output("inv_std_var", Presence::kOptional)
      .output("input_skip_bias_sum", Presence::kOptional)
      .attr("epsilon", AttrKind::kFloat)
      .infer(infer_skip);
}

}  // namespace

// normalize(input + skip + bias) * gamma + beta over the last axis
ORTMODULE_OP("com.microsoft", SkipLayerNormalization, 1)
    .input("input")
    .input("skip")
    .input("gamma")
    .optional_input("beta")
    .optional_input("bias")
    .apply(skip_outputs)
    .grad({"input", "skip", "gamma", "beta", "bias"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SkipLayerNormalizationGrad"); });
ORTMODULE_OP("ai.ortmodule", SkipLayerNormalizationGrad, 1).apply(rerun_record);

// The same without centering; the output "mean" is never computed.
ORTMODULE_OP("com.microsoft", SkipSimplifiedLayerNormalization, 1)
    .input("input")
    .input("skip")
    .input("gamma")
    .optional_input("bias")
    .apply(skip_outputs)
    .grad({"input", "skip", "gamma", "bias"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SkipSimplifiedLayerNormalizationGrad"); });
ORTMODULE_OP("ai.ortmodule", SkipSimplifiedLayerNormalizationGrad, 1).apply(rerun_record);

namespace {

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

// Word, position and segment embeddings added and normalized; mask_index counts each row's ones in `mask`.
ORTMODULE_OP("com.microsoft", EmbedLayerNormalization, 1)
    .input("input_ids")
    .optional_input("segment_ids")
    .input("word_embedding")
    .input("position_embedding")
    .optional_input("segment_embedding")
    .input("gamma")
    .input("beta")
    .optional_input("mask")
    .optional_input("position_ids")
    .output("output")
    .output("mask_index", Presence::kOptional)
    .output("embedding_sum", Presence::kOptional)
    .attr("epsilon", AttrKind::kFloat)
    .attr("mask_index_type", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape *ids = c.shape_of_rank(0, 2), *words = c.shape_of_rank(2, 2);
      std::optional<Shape> y, counts;
      if (ids && words) y = Shape{(*ids)[0], (*ids)[1], (*words)[1]};
      if (ids) counts = Shape{(*ids)[0]};
      c.out(0, c.dtype(2), y);
      c.out(1, DType::kInt32, std::move(counts));
      c.out(2, c.dtype(2), std::move(y));
    })
    .no_grad({"input_ids", "segment_ids", "mask", "position_ids"})
    .grad({"word_embedding", "position_embedding", "segment_embedding", "gamma", "beta"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::EmbedLayerNormalizationGrad"); });
ORTMODULE_OP("ai.ortmodule", EmbedLayerNormalizationGrad, 1).apply(rerun_record);

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
