// BatchNormalization with given statistics or (training_mode) the batch's own, and ai.ortmodule::BatchNormTraining.
//
// The standard's training form averages running_var over the biased variance and inverts momentum, so a graph that
// must end up with PyTorch's buffers cannot use it: BatchNormTraining has torch.nn.BatchNorm's meaning.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

// Output slots of the statistics that backward reads: the mean and one over the standard deviation.
constexpr size_t kMean = 3, kDeviation = 4;

void check_channels(InferContext& c) {
  const Shape* x = c.shape(0);
  if (!x) return;
  if (x->size() < 2) c.error(str("X should have at least 2 dimensions, got ", shape_text(*x)));
  for (size_t i = 1; i < 5; ++i) {
    const Shape* s = c.shape_of_rank(i, 1);
    if (s && (*s)[0].is_known() && (*x)[1].is_known() && (*s)[0] != (*x)[1])
      c.error(str("X has ", (*x)[1].text(), " channels, input ", i, " has ", (*s)[0].text(), " elements"));
  }
}

// Statistics that backward reads, in the type ATen keeps them in.
void infer_saved(InferContext& c, size_t first) {
  const DType stats = is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0);
  const std::optional<Shape> channels = c.shape(1) ? std::optional<Shape>(*c.shape(1)) : std::nullopt;
  c.out(first, stats, channels);
  c.out(first + 1, stats, channels);
  c.out(first + 2, DType::kUInt8, c.fresh_shape(1));
}

bool takes_own_statistics(const Node& node) {
  return node.get_int("training_mode", node.op() == "BatchNormInternal") != 0;
}

void infer_batch_norm(InferContext& c) {
  check_channels(c);
  if (!takes_own_statistics(c.node()) && (c.wants(1) || c.wants(2)))
    c.error("running statistics are outputs in training_mode only");
  c.same_as(0, 0);
  c.same_as(1, 3);
  c.same_as(2, 4);
  infer_saved(c, kMean);
}

// Through the batch's own statistics; the running ones have no gradient.
void own_statistics_gradient(GradContext& c) {
  if (!c.GO(0)) return;
  const auto grads = c.emit_some(
      "ai.ortmodule::BatchNormTrainingGrad", {c.GO(0), c.I(0), c.I(1), c.O(kMean), c.O(kDeviation), c.saved("reserve")},
      {c.needs(0), c.needs(1), c.needs(2)}, {{"epsilon", c.node().get_float("epsilon", 1e-5)}});
  for (size_t i = 0; i < 3; ++i) c.GI(i, grads[i]);
}

void batch_norm_gradient(GradContext& c) {
  if (takes_own_statistics(c.node())) return own_statistics_gradient(c);
  const auto grads =
      c.emit_some("ai.ortmodule::BatchNormalizationGrad", {c.GO(0), c.I(0), c.I(1), c.I(3), c.I(4)},
                  {c.needs(0), c.needs(1), c.needs(2)}, {{"epsilon", c.node().get_float("epsilon", 1e-5)}});
  for (size_t i = 0; i < 3; ++i) c.GI(i, grads[i]);
}

void infer_batch_norm_training(InferContext& c) {
  check_channels(c);
  c.same_as(0, 0);
  c.same_as(1, 3);
  c.same_as(2, 4);
  infer_saved(c, 3);
}

// [N, C, rest]
NodeArg* by_channel(BodyFormula& f, NodeArg* x) { return f.reshape(x, {0, 0, -1}); }

// Statistics [C] as what broadcasts to [N, C, rest].
NodeArg* column(BodyFormula& f, NodeArg* x, DType type) { return f.unsqueeze(f.cast(x, type), {1}); }

NodeArg* reciprocal_deviation(BodyFormula& f, NodeArg* variance) {
  NodeArg* shifted = f.add(variance, f.c.node().get_float("epsilon", 1e-5));
  return f.unary("Reciprocal", f.unary("Sqrt", shifted));
}

DType stats_type(const NodeArg* x) { return is_reduced_floating(x->type().dtype) ? DType::kFloat : x->type().dtype; }

// Both forms with the batch's own statistics; "reserve" has no meaning outside cuDNN. ai.ortmodule's form weighs the
// new statistics with momentum and takes the unbiased variance, the standard's weighs the old and takes the biased.
void own_statistics_body(BodyContext& c) {
  const bool standard = c.node().domain().empty();
  if (standard && !c.node().get_int("training_mode", 0)) return;
  BodyFormula f(c);
  const DType type = stats_type(c.in(0));
  NodeArg* x = f.cast(by_channel(f, c.in(0)), type);
  NodeArg* mean = f.mean(x, {0, 2});
  NodeArg* centered = f.sub(x, mean);
  NodeArg* variance = f.mean(f.mul(centered, centered), {0, 2});
  NodeArg* rstd = reciprocal_deviation(f, variance);
  NodeArg* y = f.add(f.mul(f.mul(centered, rstd), column(f, c.in(1), type)), column(f, c.in(2), type));
  c.out(0, f.cast(f.reshape_like(y, c.in(0)), c.in(0)->type().dtype));
  const double momentum = c.node().get_float("momentum", standard ? 0.9 : 0.1),
               fresh = standard ? 1 - momentum : momentum;
  const auto blend = [&](size_t running, NodeArg* batch) {
    NodeArg* old = c.in(running);
    NodeArg* now = f.cast(f.squeeze(batch, {0, 2}), old->type().dtype);
    return f.add(f.mul(old, 1 - fresh), f.mul(now, fresh));
  };
  if (c.wants(1)) c.out(1, blend(3, mean));
  if (c.wants(2)) {
    NodeArg* count = f.cast(f.div(f.unary("Size", x), f.unary("Size", mean)), type);
    c.out(2, blend(4, standard ? variance : f.div(f.mul(variance, count), f.add(count, -1))));
  }
  if (c.wants(3)) c.out(3, f.squeeze(mean, {0, 2}));
  if (c.wants(4)) c.out(4, f.squeeze(rstd, {0, 2}));
}

// `own`: the statistics are the batch's, and depend on x.
void batch_norm_grad_body(BodyContext& c, bool own) {
  BodyFormula f(c);
  const DType type = stats_type(c.in(1)), of_scale = c.in(2)->type().dtype;
  NodeArg *dy = f.cast(by_channel(f, c.in(0)), type), *x = f.cast(by_channel(f, c.in(1)), type);
  NodeArg* rstd = column(f, c.in(4), type);
  if (!own) rstd = reciprocal_deviation(f, rstd);
  NodeArg* xhat = f.mul(f.sub(x, column(f, c.in(3), type)), rstd);
  NodeArg* g = f.mul(dy, column(f, c.in(2), type));
  if (c.wants(0)) {
    NodeArg* dx = own ? normalization_dx(f, g, xhat, rstd, {0, 2}, true) : f.mul(g, rstd);
    c.out(0, f.cast(f.reshape_like(dx, c.in(1)), c.in(1)->type().dtype));
  }
  if (c.wants(1)) c.out(1, f.cast(f.sum(f.mul(dy, xhat), {0, 2}, false), of_scale));
  if (c.wants(2)) c.out(2, f.cast(f.sum(dy, {0, 2}, false), of_scale));
}

// Before opset 14 the extra outputs, and before 7 the attribute is_test, said whether this is training.
void upgrade_batch_norm(UpgradeContext& c) {
  const bool spatial = c.take_int("spatial").value_or(1) != 0;
  const auto is_test = c.take_int("is_test");
  c.drop("consumed_inputs");
  if (!spatial) c.unsupported("spatial=0 is not supported");
  if (c.wants(3) || c.wants(4)) c.unsupported("the outputs saved_mean and saved_var are not supported");
  const bool training = c.wants(1) || c.wants(2) || (c.opset() < 7 && is_test.value_or(0) == 0);
  c.set("training_mode", int64_t{training});
  c.rewrite(c.node().inputs());
}

// From the statistics that forward took. A second look at the batch would move the running ones twice.
std::optional<RecomputeForm> with_known_statistics(const Node& node) {
  if (!node.output(3) || !node.output(4)) return std::nullopt;
  return RecomputeForm{"ai.ortmodule",
                       "BatchNormApply",
                       {node.input(0), node.input(1), node.input(2), node.output(3), node.output(4)},
                       {}};
}

void grad_outputs(OpRecord& op) {
  op.output("dX", Presence::kOptional)
      .output("dScale", Presence::kOptional)
      .output("dB", Presence::kOptional)
      .attr("epsilon", AttrKind::kFloat)
      .infer(infer_like<1, 2, 2>)
      .not_differentiable();
}

void standard_form(OpRecord& r) {
  r.input("X")
      .input("scale")
      .input("B")
      .input("input_mean")
      .input("input_var")
      .output("Y")
      .output("running_mean", Presence::kOptional)
      .output("running_var", Presence::kOptional)
      .attr("epsilon", AttrKind::kFloat)
      .attr("momentum", AttrKind::kFloat)
      .attr("training_mode", AttrKind::kInt)
      .traits(kStatistics)
      .grad({"X", "scale", "B"}, batch_norm_gradient)
      .no_grad({"input_mean", "input_var"});
}

}  // namespace

// X[N, C, ...]; scale, B, mean, var [C]
ORTMODULE_OP("", BatchNormalization, 14)
    .older(1, 13, upgrade_batch_norm)
    .apply(standard_form)
    .saved("mean")
    .saved("invstd")
    .saved("reserve")
    .infer(infer_batch_norm)
    .body(own_statistics_body);

ORTMODULE_OP("ai.ortmodule", BatchNormalizationGrad, 1)
    .input("dY")
    .input("X")
    .input("scale")
    .input("mean")
    .input("var")
    .apply(grad_outputs)
    .body([](BodyContext& c) { batch_norm_grad_body(c, false); });

// The same with the batch's statistics as outputs, which ONNX Runtime's training graphs hold.
ORTMODULE_OP("com.microsoft", BatchNormInternal, 1)
    .apply(standard_form)
    .output("saved_mean", Presence::kOptional)
    .output("saved_inv_std", Presence::kOptional)
    .saved("reserve")
    .infer([](InferContext& c) {
      if (!takes_own_statistics(c.node()) && (c.wants(kMean) || c.wants(kDeviation)))
        c.error("the batch's statistics are outputs in training_mode only");
      infer_batch_norm(c);
    });

// From BatchNormInternal's last outputs.
ORTMODULE_OP("com.microsoft", BatchNormalizationGrad, 1)
    .input("dY")
    .input("X")
    .input("scale")
    .input("saved_mean")
    .input("saved_inv_std")
    .apply(grad_outputs);

// new = (1 - momentum) * running + momentum * batch, with the unbiased variance. "reserve" is cuDNN's workspace.
ORTMODULE_OP("ai.ortmodule", BatchNormTraining, 1)
    .input("x")
    .input("scale")
    .input("bias")
    .input("running_mean")
    .input("running_var")
    .output("y")
    .output("new_mean", Presence::kOptional)
    .output("new_var", Presence::kOptional)
    .saved("mean")
    .saved("invstd")
    .saved("reserve")
    .attr("epsilon", AttrKind::kFloat)
    .attr("momentum", AttrKind::kFloat)
    .infer(infer_batch_norm_training)
    .traits(kStatistics)
    .body(own_statistics_body)
    .grad({"x", "scale", "bias"}, own_statistics_gradient)
    .no_grad({"running_mean", "running_var"})
    .recompute(with_known_statistics);

// y = (x - mean) * invstd * scale + bias per channel: what BatchNormTraining gives, its statistics known.
ORTMODULE_OP("ai.ortmodule", BatchNormApply, 1)
    .input("x")
    .input("scale")
    .input("bias")
    .input("mean")
    .input("invstd")
    .output("y")
    .infer(infer_same)
    .traits(kElementwise | kCheap)
    .not_differentiable();

ORTMODULE_OP("ai.ortmodule", BatchNormTrainingGrad, 1)
    .input("dy")
    .input("x")
    .input("scale")
    .input("mean")
    .input("invstd")
    .input("reserve")
    .apply(grad_outputs)
    .body([](BodyContext& c) { batch_norm_grad_body(c, true); });

}  // namespace ortmodule
