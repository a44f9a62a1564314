// com.microsoft's normalizations of sums: SkipLayerNormalization, SkipSimplifiedLayerNormalization and
// EmbedLayerNormalization. Gradients run the operator again.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// Mean and inverse deviation of each row: x's sizes with the last axis as one, in float at least.
void infer_statistics(InferContext& c) {
  std::optional<Shape> stats;
  if (const Shape* x = c.shape(0)) {
    stats = *x;
    (*stats)[c.axis(-1, x->size())] = 1;
  }
  for (size_t i = 1; i < 3; ++i) c.out(i, is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0), stats);
}

void infer_skip(InferContext& c) {
  c.same_as(0, 0);
  infer_statistics(c);
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

// The standard's normalization of a sum; `beta` may be null.
void normalize_sum(BodyContext& c, const char* op, NodeArg* sum, NodeArg* gamma, NodeArg* beta) {
  const Attributes attributes{{"axis", int64_t{-1}}, {"epsilon", c.node().get_float("epsilon", 1e-12)}};
  const bool centers = std::string_view(op) == "LayerNormalization";
  const bool statistics = c.wants(1) || c.wants(2);
  if (statistics && !centers) return;  // the standard's operator has no such output
  std::vector<NodeArg*> inputs{sum, gamma};
  if (beta) inputs.push_back(beta);
  const std::vector<NodeArg*> made = c.emit_n(op, inputs, statistics ? 3 : 1, attributes);
  c.out(0, made[0]);
  for (size_t i = 1; statistics && i < 3; ++i)
    if (c.wants(i)) c.out(i, made[i]);
}

void skip_body(BodyContext& c, const char* op, NodeArg* beta, NodeArg* bias) {
  NodeArg* sum = c.emit("Add", {c.in(0), c.in(1)});
  if (bias) sum = c.emit("Add", {sum, bias});
  normalize_sum(c, op, sum, c.in(2), beta);
  if (c.wants(3)) c.out(3, sum);
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
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SkipLayerNormalizationGrad"); })
    .body([](BodyContext& c) { skip_body(c, "LayerNormalization", c.in(3), c.in(4)); });
ORTMODULE_OP("ai.ortmodule", SkipLayerNormalizationGrad, 1).apply(rerun_record);

// The same without centering; the output "mean" is never computed.
ORTMODULE_OP("com.microsoft", SkipSimplifiedLayerNormalization, 1)
    .input("input")
    .input("skip")
    .input("gamma")
    .optional_input("bias")
    .apply(skip_outputs)
    .grad({"input", "skip", "gamma", "bias"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::SkipSimplifiedLayerNormalizationGrad"); })
    .body([](BodyContext& c) { skip_body(c, "RMSNormalization", nullptr, c.in(3)); });
ORTMODULE_OP("ai.ortmodule", SkipSimplifiedLayerNormalizationGrad, 1).apply(rerun_record);

namespace {

void embed_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg *ids = c.in(0), *segments = c.in(1), *mask = c.in(7), *positions = c.in(8);
  if (!positions) positions = f.unsqueeze(f.range(f.shape(ids, 1, 2)), {0});
  NodeArg* sum = f.add(c.emit("Gather", {c.in(2), ids}), c.emit("Gather", {c.in(3), positions}));
  if (segments) sum = f.add(sum, c.emit("Gather", {c.in(4), segments}));
  const Attributes attributes{{"axis", int64_t{-1}}, {"epsilon", c.node().get_float("epsilon", 1e-12)}};
  c.out(0, c.emit("LayerNormalization", {sum, c.in(5), c.in(6)}, attributes));
  if (c.wants(1))
    c.out(1, mask ? f.cast(f.sum(f.cast(mask, DType::kInt64), {1}, false), DType::kInt32)
                  : f.filled(f.shape(ids, 0, 1), 0, DType::kInt32));
  if (c.wants(2)) c.out(2, sum);
}

}  // namespace

// Word, position and segment embeddings added and normalized; mask_index counts each row's ones in `mask`.
// Ids are int32 in com.microsoft's schema, and here int64 as well.
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
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::EmbedLayerNormalizationGrad"); })
    .body(embed_body);
ORTMODULE_OP("ai.ortmodule", EmbedLayerNormalizationGrad, 1).apply(rerun_record);

}  // namespace ortmodule
