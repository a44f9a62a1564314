// Element-wise access by position along one axis: GatherElements, ScatterElements, OneHot.
#include "base/status.h"
#include "ops/index/scatter_gradient.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

std::optional<Shape> copied(const Shape* shape) { return shape ? std::optional<Shape>(*shape) : std::nullopt; }

void check_axis(InferContext& c, int64_t fallback) {
  if (c.shape(0) && !c.shape(0)->empty()) c.axis(c.attr_int("axis", fallback), c.shape(0)->size());
}

ORTMODULE_OP("", GatherElements, 11)
    .input("data")
    .input("indices")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .no_grad({"indices"})
    .infer([](InferContext& c) {
      check_axis(c, 0);
      c.out(0, c.dtype(0), copied(c.shape(1)));
    })
    .grad({"data"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::GatherElementsGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))},
                     {{"axis", c.node().get_int("axis", 0)}}));
    });

// Zeros of shape `sizes` to which dY is added at the positions.
ORTMODULE_OP("ai.ortmodule", GatherElementsGrad, 1)
    .input("dY")
    .input("indices")
    .host_input("sizes")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .not_differentiable()
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(2);
      c.out(0, c.dtype(0),
            dims         ? std::optional<Shape>(*dims)
            : c.shape(0) ? std::optional<Shape>(c.fresh_shape(c.shape(0)->size()))
                         : std::nullopt);
    })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      c.out(0, f.scatter_add(c.in(2), c.in(1), c.in(0), c.node().get_int("axis", 0)));
    });

// Without a reduction positions should be distinct: which of two writes stays is not defined.
ORTMODULE_OP("", ScatterElements, 11)
    .formerly("Scatter", 9, 10,
              [](UpgradeContext& c) { c.rewrite("ScatterElements", c.node().inputs(), c.attributes()); })
    .input("data")
    .input("indices")
    .input("updates")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .attr("reduction", AttrKind::kString)
    .no_grad({"indices"})
    .infer([](InferContext& c) {
      check_axis(c, 0);
      if (c.dtype(0) != c.dtype(2))
        c.error(str("data and updates should have one type, got ", dtype_name(c.dtype(0)), " and ",
                    dtype_name(c.dtype(2))));
      infer_same(c);
    })
    .grad({"data", "updates"},
          [](GradContext& c) { scatter_gradient(c, "GatherElements", {{"axis", c.node().get_int("axis", 0)}}); });

// values = [off, on]; a position outside [-depth, depth) gives a row of off.
ORTMODULE_OP("", OneHot, 9)
    .input("indices")
    .host_input("depth")
    .input("values")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .no_grad({"indices"})
    .infer([](InferContext& c) {
      const Shape* indices = c.shape(0);
      if (!indices) {
        c.out(0, c.dtype(2), std::nullopt);
        return;
      }
      const size_t axis = c.axis(c.attr_int("axis", -1), indices->size() + 1);
      const auto depth = c.dims_value(1);
      Shape out = *indices;
      out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis),
                 depth && depth->size() == 1 ? (*depth)[0] : c.fresh_shape(out.size() + 1)[axis]);
      c.out(0, c.dtype(2), std::move(out));
    })
    .grad({"values"}, [](GradContext& c) {
      NodeArg* zero = c.emit("Unsqueeze", {c.scalar(0, c.GO(0)), c.ints({0})});
      NodeArg* one = c.emit("Unsqueeze", {c.scalar(1, c.GO(0)), c.ints({0})});
      NodeArg* is_on = c.emit("OneHot", {c.I(0), c.I(1), c.emit("Concat", {zero, one}, {{"axis", int64_t{0}}})},
                              {{"axis", c.node().get_int("axis", -1)}});
      const auto total = [&](NodeArg* value) {
        return c.emit("Reshape", {c.emit("ReduceSum", {value}, {{"keepdims", int64_t{0}}}), c.ints({1})});
      };
      NodeArg* on = total(c.emit("Mul", {c.GO(0), is_on}));
      NodeArg* off = c.emit("Sub", {total(c.GO(0)), on});
      c.GI(2, c.emit("Concat", {off, on}, {{"axis", int64_t{0}}}));
    });

}  // namespace
}  // namespace ortmodule
