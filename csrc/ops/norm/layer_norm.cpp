// LayerNormalization: y = (x - mean) / sqrt(var + epsilon) * scale + bias over the dimensions from `axis` on.
//
// The standard's optional outputs Mean and InvStdDev are what backward needs, so nothing else is saved.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

// Statistics of 16-bit inputs are float, as the standard's stash_type says.
DType stats_dtype(DType dtype) { return is_reduced_floating(dtype) ? DType::kFloat : dtype; }

void infer_layer_norm(InferContext& c) {
  c.same_as(0, 0);
  const Shape* x = c.shape(0);
  std::optional<Shape> stats;
  if (x) {
    const size_t axis = c.axis(c.attr_int("axis", -1), x->size());
    for (size_t i = 1; i < 3; ++i) {
      const Shape* s = c.shape(i);
      if (!s || s->empty() || x->empty()) continue;
      const Dim &have = s->back(), &want = x->back();
      if (have.is_known() && want.is_known() && have != want && have.value() != 1)
        c.error(str("expected ", i == 1 ? "scale" : "bias", " of ", want.text(), " elements, got ", have.text()));
    }
    stats = *x;
    for (size_t i = axis; i < stats->size(); ++i) (*stats)[i] = 1;
  }
  c.out(1, stats_dtype(c.dtype(0)), stats);
  c.out(2, stats_dtype(c.dtype(0)), std::move(stats));
}

// dX of the outputs Mean and InvStdDev: (dMean - dInvStdDev InvStdDev^3 (X - Mean)) / n.
NodeArg* through_statistics(GradContext& c) {
  NodeArg *mean = c.O(1), *inv_std = c.O(2);
  const DType type = mean->type().dtype;
  NodeArg* sum = c.GO(1);
  if (c.GO(2)) {
    NodeArg* cube = c.emit("Mul", {inv_std, c.emit("Mul", {inv_std, inv_std})});
    NodeArg* centered = c.emit("Sub", {c.cast(c.I(0), type), mean});
    NodeArg* part = c.emit("Mul", {c.emit("Mul", {c.GO(2), cube}), centered});
    sum = sum ? c.emit("Sub", {sum, part}) : c.emit("Neg", {part});
  } else {
    sum = c.emit("Expand", {sum, c.sizes_of(c.I(0))});
  }
  NodeArg* count = c.emit("Div", {c.cast(c.emit("Size", {c.I(0)}), type), c.cast(c.emit("Size", {mean}), type)});
  return c.cast(c.emit("Div", {sum, count}), c.I(0)->type().dtype);
}

void layer_norm_gradient(GradContext& c) {
  if (c.GO(0)) {
    const auto grads = c.emit_some("ai.ortmodule::LayerNormalizationGrad", {c.GO(0), c.I(0), c.O(1), c.O(2), c.I(1)},
                                   {c.needs(0), c.needs(1), c.needs(2)}, {{"axis", c.node().get_int("axis", -1)}});
    for (size_t i = 0; i < 3; ++i) c.GI(i, grads[i]);
    if ((c.GO(1) || c.GO(2)) && c.needs(0)) c.GI(0, c.emit("Add", {grads[0], through_statistics(c)}));
  } else if ((c.GO(1) || c.GO(2)) && c.needs(0)) {
    c.GI(0, through_statistics(c));
  }
}

void layer_norm_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = c.in(2)->type().dtype, result = c.in(1)->type().dtype;
  std::vector<int64_t> axes;
  for (int64_t axis = c.node().get_int("axis", -1), end = axis < 0 ? 0 : f.rank(c.in(1)); axis < end; ++axis)
    axes.push_back(axis);
  NodeArg* dy = f.cast(c.in(0), type);
  NodeArg* xhat = f.mul(f.sub(f.cast(c.in(1), type), c.in(2)), c.in(3));
  NodeArg* g = f.mul(dy, f.cast(c.in(4), type));
  if (c.wants(0)) c.out(0, f.cast(normalization_dx(f, g, xhat, c.in(3), axes, true), result));
  if (c.wants(1)) c.out(1, f.cast(f.sum_to(f.mul(dy, xhat), c.in(4)), c.in(4)->type().dtype));
  if (c.wants(2)) c.out(2, f.cast(f.sum_to(dy, c.in(4)), c.in(4)->type().dtype));
}

void infer_layer_norm_grad(InferContext& c) {
  c.same_as(0, 1);
  c.same_as(1, 4);
  c.same_as(2, 4);
}

bool fuse_layer_norm(FusionContext& c) {
  if (!c.whole_rows() || !c.is_last_axis(0)) return false;
  const int x = c.in(0), mean = c.emit(Opcode::kRowMean, x), centered = c.emit(Opcode::kSub, x, mean);
  const int variance = c.emit(Opcode::kRowMean, c.emit(Opcode::kMul, centered, centered));
  const int rstd =
      c.emit(Opcode::kRsqrt, c.emit(Opcode::kAdd, variance, c.number(c.node().get_float("epsilon", 1e-5))));
  int y = c.emit(Opcode::kMul, c.emit(Opcode::kMul, centered, rstd), c.in(1));
  if (c.has(2)) y = c.emit(Opcode::kAdd, y, c.in(2));
  c.out(0, y);
  if (c.wants(1)) c.out(1, mean, OutputForm::kRow);
  if (c.wants(2)) c.out(2, rstd, OutputForm::kRow);
  return true;
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy scale.
bool fuse_layer_norm_grad(FusionContext& c) {
  if (!c.whole_rows() || !c.is_last_axis(0)) return false;
  const int dy = c.in(0), rstd = c.in(3);
  const int xhat = c.emit(Opcode::kMul, c.emit(Opcode::kSub, c.in(1), c.in(2)), rstd);
  if (c.wants(0)) {
    const int g = c.emit(Opcode::kMul, dy, c.in(4)), plain = c.emit(Opcode::kRowMean, g);
    const int along = c.emit(Opcode::kRowMean, c.emit(Opcode::kMul, g, xhat));
    const int rest = c.emit(Opcode::kSub, c.emit(Opcode::kSub, g, plain), c.emit(Opcode::kMul, xhat, along));
    c.out(0, c.emit(Opcode::kMul, rstd, rest));
  }
  if (c.wants(1)) c.out(1, c.emit(Opcode::kMul, dy, xhat), OutputForm::kColumn);
  if (c.wants(2)) c.out(2, dy, OutputForm::kColumn);
  return true;
}

}  // namespace

ORTMODULE_OP("", LayerNormalization, 17)
    .input("X")
    .input("Scale")
    .optional_input("B")
    .output("Y")
    .output("Mean", Presence::kOptional)
    .output("InvStdDev", Presence::kOptional)
    .attr("axis", AttrKind::kInt)
    .attr("epsilon", AttrKind::kFloat)
    .attr("stash_type", AttrKind::kInt)
    .infer(infer_layer_norm)
    .grad({"X", "Scale", "B"}, layer_norm_gradient)
    // Measured: rows stay in the cache between its passes.
    .passes(1.5)
    .rows(along_axis<-1, true>)
    .fuses_rows(fuse_layer_norm);

ORTMODULE_OP("ai.ortmodule", LayerNormalizationGrad, 1)
    .input("dY")
    .input("X")
    .input("Mean")
    .input("InvStdDev")
    .input("Scale")
    .output("dX", Presence::kOptional)
    .output("dScale", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .attr("axis", AttrKind::kInt)
    .infer(infer_layer_norm_grad)
    .not_differentiable()
    .body(layer_norm_grad_body)
    .fuses_rows(fuse_layer_norm_grad);

}  // namespace ortmodule
