// CumProd: products of all elements up to each one.
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {

ORTMODULE_OP("", CumProd, 26)
    .input("x")
    .host_input("axis")
    .output("y")
    .attr("exclusive", AttrKind::kInt)
    .attr("reverse", AttrKind::kInt)
    .infer(infer_same)
    .grad({"x"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::CumProdGrad"); });
ORTMODULE_OP("ai.ortmodule", CumProdGrad, 1).apply(rerun_record);

}  // namespace ortmodule
