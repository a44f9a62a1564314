// Hardmax: one at the first largest element along an axis, zero elsewhere. Up to opset 12 the axes from `axis` on count
// as one. Its derivative is zero almost everywhere, and the gradient is zero.
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
ORTMODULE_OP("", Hardmax, 13)
    .input("input")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (const Shape* x = c.shape(0); x && !x->empty()) c.axis(c.attr_int("axis", -1), x->size());
      c.same_as(0, 0);
    })
    .older(1, 12, upgrade_flattened_axis)
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.zeros_like(c.GO(0))); });

}  // namespace ortmodule
