// Losses of ONNX Runtime's training graphs and their gradient operators: classes on the second axis, as the standard's
// losses have them (SoftmaxCrossEntropyLossInternal, NegativeLogLikelihoodLossInternal and ...Internal2), or on the
// last (SoftmaxCrossEntropy, whose labels are distributions, and SparseSoftmaxCrossEntropy).
//
// They come in graphs that ONNX Runtime made; ours hold SoftmaxCrossEntropyLoss. So their gradients run them again.
#include "ops/loss/loss_rules.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

template <const char* const& op>
void again(GradContext& c) {
  rerun_gradient(c, op);
}
constexpr const char* kLossGrad = "ai.ortmodule::CrossEntropyInternalGrad";
constexpr const char* kLikelihoodGrad = "ai.ortmodule::LikelihoodInternalGrad";
constexpr const char* kDistributionGrad = "ai.ortmodule::DistributionCrossEntropyGrad";
constexpr const char* kSparseGrad = "ai.ortmodule::SparseCrossEntropyGrad";

DType output_type(InferContext& c, size_t like) {
  const auto type = static_cast<DType>(c.attr_int("output_type", 0));
  return type == DType::kUndefined ? c.dtype(like) : type;
}

// scores[N, C, d...], labels[N, d...] -> [] or [N, d...], and log_prob where there is one.
void infer_second_axis(InferContext& c) {
  const auto labels = label_shape(c, 0);
  check_labels(c, labels);
  infer_reduced(c, labels);
  if (NodeArg* y = c.node().output(0)) y->set_type({output_type(c, 0), y->type().shape});
  if (c.wants(1)) c.same_as(1, 0);
}

// logits[..., C] -> [] or [...], log_prob[..., C]
void infer_last_axis(InferContext& c) {
  std::optional<Shape> rows;
  if (const Shape* logits = c.shape(0)) {
    if (logits->empty()) c.error("logits should have the classes as their last axis, got rank 0");
    rows = Shape(logits->begin(), logits->end() - 1);
  }
  infer_reduced(c, rows);
  if (c.wants(1)) c.same_as(1, 0);
}

void second_axis(OpRecord& op) {
  op.optional_input("weights")
      .host_input("ignore_index", Presence::kOptional)
      .output("output")
      .attr("reduction", AttrKind::kString)
      .infer(infer_second_axis);
}

void last_axis(OpRecord& op) {
  op.output("Y").output("log_prob", Presence::kOptional).attr("reduction", AttrKind::kString).infer(infer_last_axis);
}

void likelihood(OpRecord& op) {
  op.input("input")
      .input("target")
      .apply(second_axis)
      .grad({"input"}, again<kLikelihoodGrad>)
      .no_grad({"target", "weights"});
}

// dY, log_prob and labels -> d_logits
void from_log_prob(OpRecord& op) {
  op.input("dY")
      .input("log_prob")
      .input("label")
      .output("d_logits")
      .attr("reduction", AttrKind::kString)
      .infer([](InferContext& c) {
        c.out(0, output_type(c, 1), c.shape(1) ? std::optional<Shape>(*c.shape(1)) : std::nullopt);
      });
}

}  // namespace

// SoftmaxCrossEntropyLoss with ignore_index as an input and the output's type as an attribute.
ORTMODULE_OP("com.microsoft", SoftmaxCrossEntropyLossInternal, 1)
    .input("scores")
    .input("labels")
    .apply(second_axis)
    .output("log_prob", Presence::kOptional)
    .attr("output_type", AttrKind::kInt)
    .grad({"scores"}, again<kLossGrad>)
    .no_grad({"labels", "weights"});
ORTMODULE_OP("ai.ortmodule", CrossEntropyInternalGrad, 1).apply(rerun_record);

// NegativeLogLikelihoodLoss with ignore_index as an input. ONNX Runtime's two differ in their function bodies alone.
ORTMODULE_OP("com.microsoft", NegativeLogLikelihoodLossInternal, 1).apply(likelihood);
ORTMODULE_OP("com.microsoft", NegativeLogLikelihoodLossInternal2, 1).apply(likelihood);
ORTMODULE_OP("ai.ortmodule", LikelihoodInternalGrad, 1).apply(rerun_record);

// -sum(label * log_softmax(logits)) per row; the mean is over rows.
ORTMODULE_OP("com.microsoft", SoftmaxCrossEntropy, 1)
    .input("logits")
    .input("label")
    .apply(last_axis)
    .grad({"logits", "label"}, again<kDistributionGrad>);
ORTMODULE_OP("ai.ortmodule", DistributionCrossEntropyGrad, 1).apply(rerun_record);

// The same for integer labels, with a weight for each of them; the mean is over weights. ONNX Runtime has it in
// ai.onnx.
ORTMODULE_OP("", SparseSoftmaxCrossEntropy, 9)
    .input("logits")
    .input("label")
    .optional_input("weight")
    .apply(last_axis)
    .grad({"logits"}, again<kSparseGrad>)
    .no_grad({"label", "weight"});
ORTMODULE_OP("ai.ortmodule", SparseCrossEntropyGrad, 1).apply(rerun_record);

ORTMODULE_OP("com.microsoft", SoftmaxCrossEntropyGrad, 1).apply(from_log_prob).not_differentiable();

ORTMODULE_OP("", SparseSoftmaxCrossEntropyGrad, 9).apply(from_log_prob).optional_input("weight").not_differentiable();

ORTMODULE_OP("com.microsoft", SoftmaxCrossEntropyLossGrad, 1)
    .apply(from_log_prob)
    .optional_input("weight")
    .attr("ignore_index", AttrKind::kInt)
    .not_differentiable();

// Adds `bias`, a gradient that came another way.
ORTMODULE_OP("com.microsoft", SoftmaxCrossEntropyLossInternalGrad, 1)
    .apply(from_log_prob)
    .optional_input("weight")
    .host_input("ignore_index", Presence::kOptional)
    .optional_input("bias")
    .attr("output_type", AttrKind::kInt)
    .not_differentiable();

}  // namespace ortmodule
