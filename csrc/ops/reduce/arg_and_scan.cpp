// ArgMax and ArgMin (positions, no gradient) and CumSum, whose gradient is the same scan from the other end.
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void arg_extreme(OpRecord& r) {
  r.input("data")
      .output("reduced")
      .attr("axis", AttrKind::kInt)
      .attr("keepdims", AttrKind::kInt)
      .attr("select_last_index", AttrKind::kInt)
      .traits(kReduction)
      .not_differentiable()
      .infer([](InferContext& c) {
        if (!c.shape(0)) {
          c.out(0, DType::kInt64, std::nullopt);
          return;
        }
        Shape shape = *c.shape(0);
        if (shape.empty()) {  // a number is its own extreme
          c.out(0, DType::kInt64, std::move(shape));
          return;
        }
        const size_t axis = c.axis(c.attr_int("axis", 0), shape.size());
        if (c.attr_int("keepdims", 1))
          shape[axis] = 1;
        else
          shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
        c.out(0, DType::kInt64, std::move(shape));
      });
}

ORTMODULE_OP("", ArgMax, 1).apply(arg_extreme);
ORTMODULE_OP("", ArgMin, 1).apply(arg_extreme);

ORTMODULE_OP("", CumSum, 11)
    .input("x")
    .host_input("axis")
    .output("y")
    .attr("exclusive", AttrKind::kInt)
    .attr("reverse", AttrKind::kInt)
    .infer(infer_same)
    .grad({"x"}, [](GradContext& c) {
      const int64_t reverse = c.node().get_int("reverse", 0);
      c.GI(0, c.emit("CumSum", {c.GO(0), c.I(1)},
                     {{"exclusive", c.node().get_int("exclusive", 0)}, {"reverse", int64_t{1} - reverse}}));
    });

}  // namespace
}  // namespace ortmodule
