// Det: the determinant of square matrices. Its gradient exists for singular matrices too, where no inverse does.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {

ORTMODULE_OP("", Det, 11)
    .input("X")
    .output("Y")
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      if (x && x->size() < 2) c.error(str("X should be [..., M, M], got ", shape_text(*x)));
      c.out(0, c.dtype(0), x ? std::optional<Shape>(Shape(x->begin(), x->end() - 2)) : std::nullopt);
    })
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::DetGrad"); });
ORTMODULE_OP("ai.ortmodule", DetGrad, 1).apply(rerun_record);

}  // namespace ortmodule
