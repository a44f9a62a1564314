// RMSNormalization: y = x / sqrt(mean(x^2) + epsilon) * scale over the dimensions from `axis` on.
//
// Backward keeps the reciprocal root mean square of each row beside x and scale.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

void infer_rms_norm(InferContext& c) {
  c.same_as(0, 0);
  std::optional<Shape> stats;
  if (const Shape* x = c.shape(0)) {
    stats = *x;
    for (size_t i = c.axis(c.attr_int("axis", -1), x->size()); i < stats->size(); ++i) (*stats)[i] = 1;
    const Shape* s = c.shape(1);
    if (s && !s->empty() && s->back().is_known() && x->back().is_known() && s->back() != x->back() &&
        s->back().value() != 1)
      c.error(str("expected scale of ", x->back().text(), " elements, got ", s->back().text()));
  }
  c.out(1, is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0), std::move(stats));
}

void rms_norm_gradient(GradContext& c) {
  const auto grads = c.emit_some("ai.ortmodule::RMSNormalizationGrad", {c.GO(0), c.I(0), c.saved("rstd"), c.I(1)},
                                 {c.needs(0), c.needs(1)}, {{"axis", c.node().get_int("axis", -1)}});
  c.GI(0, grads[0]);
  c.GI(1, grads[1]);
}

std::vector<int64_t> normalized_axes(BodyFormula& f, const NodeArg* x) {
  std::vector<int64_t> axes;
  for (int64_t axis = f.c.node().get_int("axis", -1), end = axis < 0 ? 0 : f.rank(x); axis < end; ++axis)
    axes.push_back(axis);
  return axes;
}

// For a portable graph whose backward reads rstd, an output that the standard's operator lacks.
void rms_norm_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = is_reduced_floating(c.in(0)->type().dtype) ? DType::kFloat : c.in(0)->type().dtype;
  NodeArg* x = f.cast(c.in(0), type);
  NodeArg* square = f.mean(f.mul(x, x), normalized_axes(f, x));
  NodeArg* rstd = f.unary("Reciprocal", f.unary("Sqrt", f.add(square, c.node().get_float("epsilon", 1e-5))));
  c.out(0, f.mul(f.cast(f.mul(x, rstd), c.in(0)->type().dtype), c.in(1)));
  if (c.wants(1)) c.out(1, rstd);
}

void rms_norm_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = c.in(2)->type().dtype;
  NodeArg* dy = f.cast(c.in(0), type);
  NodeArg* xhat = f.mul(f.cast(c.in(1), type), c.in(2));
  NodeArg* g = f.mul(dy, f.cast(c.in(3), type));
  if (c.wants(0)) {
    NodeArg* dx = normalization_dx(f, g, xhat, c.in(2), normalized_axes(f, c.in(1)), false);
    c.out(0, f.cast(dx, c.in(1)->type().dtype));
  }
  if (c.wants(1)) c.out(1, f.cast(f.sum_to(f.mul(dy, xhat), c.in(3)), c.in(3)->type().dtype));
}

bool fuse_rms_norm(FusionContext& c) {
  if (!c.whole_rows() || !c.is_last_axis(0)) return false;
  const int x = c.in(0), square = c.emit(Opcode::kRowMean, c.emit(Opcode::kMul, x, x));
  const int rstd = c.emit(Opcode::kRsqrt, c.emit(Opcode::kAdd, square, c.number(c.node().get_float("epsilon", 1e-5))));
  c.out(0, c.emit(Opcode::kMul, c.emit(Opcode::kMul, x, rstd), c.in(1)));
  if (c.wants(1)) c.out(1, rstd, OutputForm::kRow);
  return true;
}

// dx = rstd (g - xhat mean(g xhat)) with g = dy scale.
bool fuse_rms_norm_grad(FusionContext& c) {
  if (!c.whole_rows() || !c.is_last_axis(0)) return false;
  const int dy = c.in(0), rstd = c.in(2), xhat = c.emit(Opcode::kMul, c.in(1), rstd);
  if (c.wants(0)) {
    const int g = c.emit(Opcode::kMul, dy, c.in(3));
    const int along = c.emit(Opcode::kRowMean, c.emit(Opcode::kMul, g, xhat));
    c.out(0, c.emit(Opcode::kMul, rstd, c.emit(Opcode::kSub, g, c.emit(Opcode::kMul, xhat, along))));
  }
  if (c.wants(1)) c.out(1, c.emit(Opcode::kMul, dy, xhat), OutputForm::kColumn);
  return true;
}

}  // namespace

ORTMODULE_OP("", RMSNormalization, 23)
    .input("X")
    .input("scale")
    .output("Y")
    .saved("rstd")
    .attr("axis", AttrKind::kInt)
    .attr("epsilon", AttrKind::kFloat)
    .attr("stash_type", AttrKind::kInt)
    .infer(infer_rms_norm)
    .grad({"X", "scale"}, rms_norm_gradient)
    .body(rms_norm_body)
    // Measured: rows stay in the cache between its passes.
    .passes(1.5)
    .rows(along_axis<-1, true>)
    .fuses_rows(fuse_rms_norm);

ORTMODULE_OP("ai.ortmodule", RMSNormalizationGrad, 1)
    .input("dY")
    .input("X")
    .input("rstd")
    .input("scale")
    .output("dX", Presence::kOptional)
    .output("dScale", Presence::kOptional)
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) {
      c.same_as(0, 1);
      c.same_as(1, 3);
    })
    .not_differentiable()
    .body(rms_norm_grad_body)
    .fuses_rows(fuse_rms_norm_grad);

}  // namespace ortmodule
