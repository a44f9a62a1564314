// Normalizations without parameters: LpNormalization and MeanVarianceNormalization.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {

// x / |x|_p along one axis, p 1 or 2; zero where the norm is zero, and nothing flows back there.
ORTMODULE_OP("", LpNormalization, 1)
    .input("input")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .attr("p", AttrKind::kInt)
    .infer([](InferContext& c) {
      const int64_t p = c.attr_int("p", 2);
      if (p != 1 && p != 2) c.error(str("p should be 1 or 2, got ", p));
      if (const Shape* x = c.shape(0)) c.axis(c.attr_int("axis", -1), x->size());
      c.same_as(0, 0);
    })
    .grad({"input"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::LpNormalizationGrad"); });
ORTMODULE_OP("ai.ortmodule", LpNormalizationGrad, 1).apply(rerun_record);

// (x - mean) / (sqrt(variance) + 1e-9) over `axes`, [0, 2, 3] when absent.
ORTMODULE_OP("", MeanVarianceNormalization, 9)
    .input("X")
    .output("Y")
    .attr("axes", AttrKind::kInts)
    .infer([](InferContext& c) {
      if (const Shape* x = c.shape(0))
        for (int64_t axis : c.node().get_ints("axes", {0, 2, 3})) c.axis(axis, x->size());
      c.same_as(0, 0);
    })
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::MeanVarianceNormalizationGrad"); });
ORTMODULE_OP("ai.ortmodule", MeanVarianceNormalizationGrad, 1).apply(rerun_record);

}  // namespace ortmodule
