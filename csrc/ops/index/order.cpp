// Order: TopK, as the standard and as torch give it, Sort of the own domain, and Histogram, which counts by value.
//
// The standard's TopK takes the lower position among equal values; torch's takes any, and a model whose router starts
// at zero picks its experts by that choice. So what comes from torch is an operator of its own.
#include <cmath>

#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void order_gradient(OpRecord& r) {
  r.grad({"X"}, [](GradContext& c) {
    if (!c.GO(0)) return;
    c.GI(0, c.emit("ai.ortmodule::GatherElementsGrad", {c.GO(0), c.O(1), c.sizes_of(c.I(0))},
                   {{"axis", c.node().get_int("axis", -1)}}));
  });
}

void top_k(OpRecord& r) {
  r.input("X")
      .host_input("K")
      .output("Values")
      .output("Indices")
      .attr("axis", AttrKind::kInt)
      .attr("largest", AttrKind::kInt)
      .attr("sorted", AttrKind::kInt)
      .infer([](InferContext& c) {
        std::optional<Shape> shape = c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt;
        if (shape) {
          const auto k = c.dims_value(1);
          (*shape)[c.axis(c.attr_int("axis", -1), shape->size())] = k && k->size() == 1 ? (*k)[0] : c.fresh_dim();
        }
        c.out(0, c.dtype(0), shape);
        c.out(1, DType::kInt64, shape);
      })
      .apply(order_gradient);
}

// The k largest (or smallest) values along `axis` and their positions.
ORTMODULE_OP("", TopK, 10)
    .older(1, 9,
           [](UpgradeContext& c) {
             const auto k = c.take_int("k");
             if (!k) c.unsupported("the attribute k is missing");
             c.rewrite({c.I(0), c.ints({*k})});
           })
    .apply(top_k);
ORTMODULE_OP("ai.ortmodule", TopK, 1).apply(top_k).body([](BodyContext& c) {
  const auto results = c.emit_n("TopK", {c.in(0), c.in(1)}, 2,
                                {{"axis", c.node().get_int("axis", -1)},
                                 {"largest", c.node().get_int("largest", 1)},
                                 {"sorted", c.node().get_int("sorted", 1)}});
  c.out(0, results[0]);
  c.out(1, results[1]);
});

// All values along `axis` in order, and their positions; `stable` keeps the order of equal values.
ORTMODULE_OP("ai.ortmodule", Sort, 1)
    .input("X")
    .output("Values")
    .output("Indices")
    .attr("axis", AttrKind::kInt)
    .attr("descending", AttrKind::kInt)
    .attr("stable", AttrKind::kInt)
    .infer([](InferContext& c) {
      std::optional<Shape> shape = c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt;
      c.out(0, c.dtype(0), shape);
      c.out(1, DType::kInt64, shape);
    })
    .apply(order_gradient)
    .body([](BodyContext& c) {
      const int64_t axis = c.node().get_int("axis", -1);
      NodeArg* size = c.emit("Gather", {c.emit("Shape", {c.in(0)}), c.ints({axis})}, {{"axis", int64_t{0}}});
      const auto results =
          c.emit_n("TopK", {c.in(0), size}, 2, {{"axis", axis}, {"largest", c.node().get_int("descending", 0)}});
      c.out(0, results[0]);
      c.out(1, results[1]);
    });

// How many elements fall into each of `bins` equal intervals of [low, high]; others, and NaN, are not counted.
ORTMODULE_OP("ai.ortmodule", Histogram, 1)
    .input("X")
    .output("Y")
    .required_attr("bins", AttrKind::kInt)
    .required_attr("low", AttrKind::kFloat)
    .required_attr("high", AttrKind::kFloat)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), Shape{Dim(c.attr_int("bins", 1))}); })
    .not_differentiable()
    .body([](BodyContext& c) {
      const auto bins = c.node().get_int("bins", 1);
      const double low = c.node().get_float("low", 0), high = c.node().get_float("high", 1);
      NodeArg* x = c.emit("Reshape", {c.in(0), c.ints({-1})});
      NodeArg* inside = c.emit(
          "And", {c.emit("GreaterOrEqual", {x, c.scalar(low, x)}), c.emit("LessOrEqual", {x, c.scalar(high, x)})});
      NodeArg* along =
          c.emit("Mul", {c.emit("Sub", {x, c.scalar(low, x)}), c.scalar(static_cast<double>(bins) / (high - low), x)});
      NodeArg* bin = c.emit("Min", {c.emit("Floor", {along}), c.scalar(static_cast<double>(bins - 1), x)});
      // What lies outside goes to a position that OneHot leaves empty.
      bin = c.emit("Where", {inside, bin, c.scalar(static_cast<double>(bins), x)});
      bin = c.emit("Cast", {bin}, {{"to", int64_t{7}}});
      NodeArg* ones = c.emit("Cast", {c.ints({0, 1})}, {{"to", static_cast<int64_t>(c.in(0)->type().dtype)}});
      NodeArg* rows = c.emit("OneHot", {bin, c.scalar_int(bins), ones}, {{"axis", int64_t{-1}}});
      c.out(0, c.emit("ReduceSum", {rows, c.ints({0})}, {{"keepdims", int64_t{0}}}));
    });

}  // namespace
}  // namespace ortmodule
