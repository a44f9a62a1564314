// CumProd: products of all elements up to each one.
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

void attributes(OpRecord& r) { r.attr("exclusive", AttrKind::kInt).attr("reverse", AttrKind::kInt); }

}  // namespace

ORTMODULE_OP("", CumProd, 26)
    .input("x")
    .host_input("axis")
    .output("y")
    .apply(attributes)
    .infer(infer_same)
    .grad({"x"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::CumProdGrad", {c.GO(0), c.I(0), c.I(1)}, c.node().attributes()));
    });

ORTMODULE_OP("ai.ortmodule", CumProdGrad, 1)
    .input("dY")
    .input("x")
    .host_input("axis")
    .output("dx")
    .apply(attributes)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

}  // namespace ortmodule
