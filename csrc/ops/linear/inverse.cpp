// Inverse of com.microsoft: the inverses of square matrices, as torch.linalg.inv.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

ORTMODULE_OP("com.microsoft", Inverse, 1)
    .input("X")
    .output("Y")
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      if (x && x->size() < 2) c.error(str("X should be [..., M, M], got ", shape_text(*x)));
      c.out(0, c.dtype(0), x ? std::optional<Shape>(*x) : std::nullopt);
    })
    // From d(X Y) = 0: dX = -Y' dY Y'.
    .grad({"X"}, [](GradContext& c) {
      NodeArg* left =
          c.emit("com.microsoft::FusedMatMul", {c.O(0), c.GO(0)}, {{"transA", int64_t{1}}, {"alpha", -1.0}});
      c.GI(0, c.emit("com.microsoft::FusedMatMul", {left, c.O(0)}, {{"transB", int64_t{1}}}));
    });

}  // namespace ortmodule
