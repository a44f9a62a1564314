// RMSNormalization: y = x / sqrt(mean(x^2) + epsilon) * scale over the dimensions from `axis` on.
//
// Backward keeps the reciprocal root mean square of each row beside x and scale.
#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

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
    .grad({"X", "scale"}, rms_norm_gradient);

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
    .not_differentiable();

}  // namespace ortmodule
