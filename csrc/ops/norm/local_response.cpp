// LRN: every element over a power of the squares around it, across channels. Krizhevsky et al. (2012), section 3.3.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void attributes(OpRecord& r) {
  r.attr("alpha", AttrKind::kFloat)
      .attr("beta", AttrKind::kFloat)
      .attr("bias", AttrKind::kFloat)
      .required_attr("size", AttrKind::kInt);
}

}  // namespace

ORTMODULE_OP("", LRN, 1)
    .input("X")
    .output("Y")
    .apply(attributes)
    .infer([](InferContext& c) {
      if (c.shape(0) && c.shape(0)->size() < 2) c.error(str("X should be [N, C, d...], got ", shape_text(*c.shape(0))));
      if (c.attr_int("size", 1) < 1) c.error(str("a size of ", c.attr_int("size", 1)));
      c.same_as(0, 0);
    })
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::LRNGrad", {c.GO(0), c.I(0)}, c.node().attributes())); });

ORTMODULE_OP("ai.ortmodule", LRNGrad, 1)
    .input("dY")
    .input("X")
    .output("dX")
    .apply(attributes)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

}  // namespace ortmodule
