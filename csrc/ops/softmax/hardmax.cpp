// Hardmax: one at the first largest element along an axis, zero elsewhere. Up to opset 12 the axes from `axis` on count
// as one. Its derivative is zero almost everywhere, and the gradient is zero.
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

template <int fallback>
void infer_hardmax(InferContext& c) {
  if (const Shape* x = c.shape(0); x && !x->empty()) c.axis(c.attr_int("axis", fallback), x->size());
  c.same_as(0, 0);
}

void hardmax(OpRecord& r) {
  r.input("input").output("output").attr("axis", AttrKind::kInt).grad({"input"}, [](GradContext& c) {
    c.GI(0, c.zeros_like(c.GO(0)));
  });
}

}  // namespace

ORTMODULE_OP("", Hardmax, 1).apply(hardmax).infer(infer_hardmax<1>);
ORTMODULE_OP("", Hardmax, 13).apply(hardmax).infer(infer_hardmax<-1>);

}  // namespace ortmodule
