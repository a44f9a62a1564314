// Operators that move or repeat axes: Transpose, Expand, Tile, DepthToSpace, SpaceToDepth.
#include <algorithm>

#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

constexpr RowRule kTransposeRows{
    .inputs =
        [](const Node& node, const Shape& out, size_t lead) {
          const std::vector<int64_t> perm = node.get_ints("perm");
          for (size_t i = 0; i < lead; ++i)
            if (i >= perm.size() || perm[i] != static_cast<int64_t>(i)) return RowRule::Inputs();
          return rows_of(node, 0, out, lead);
        },
    .axes =
        [](const Node& node, const Shape&, RowAxes axes) {
          const std::vector<int64_t> perm = node.get_ints("perm");
          if (perm.size() <= std::max(axes.batch, axes.length)) return InputAxes{};
          return of_first(node, RowAxes{static_cast<size_t>(perm[axes.batch]), static_cast<size_t>(perm[axes.length])});
        },
    .compact =
        [](CompactNode& c) {
          std::vector<int64_t> perm{0};
          for (size_t i = c.lead; i < c.rank(); ++i)
            perm.push_back(c.node.get_ints("perm")[i] - static_cast<int64_t>(c.lead) + 1);
          c.attributes["perm"] = perm;
        }};

ORTMODULE_OP("", Transpose, 1)
    .input("data")
    .output("transposed")
    .attr("perm", AttrKind::kInts)
    .traits(kView | kCheap)
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      std::vector<int64_t> perm = c.node().get_ints("perm");
      if (!x) {
        c.out(0, c.dtype(0), perm.empty() ? std::nullopt : std::optional<Shape>(c.fresh_shape(perm.size())));
        return;
      }
      if (perm.empty())
        for (size_t i = x->size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
      if (perm.size() != x->size())
        c.error(str("perm has ", perm.size(), " axes, the input has the shape ", shape_text(*x)));
      Shape out;
      std::vector<bool> seen(perm.size(), false);
      for (int64_t p : perm) {
        const size_t axis = c.axis(p, x->size());
        if (seen[axis]) c.error(str("perm holds axis ", p, " twice"));
        seen[axis] = true;
        out.push_back((*x)[axis]);
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"data"},
          [](GradContext& c) {
            const std::vector<int64_t> perm = c.node().get_ints("perm");
            if (perm.empty()) {
              c.GI(0, c.emit("Transpose", {c.GO(0)}));
              return;
            }
            const auto rank = static_cast<int64_t>(perm.size());
            std::vector<int64_t> inverse(perm.size());
            for (int64_t i = 0; i < rank; ++i) inverse[static_cast<size_t>(perm[i] < 0 ? perm[i] + rank : perm[i])] = i;
            c.GI(0, c.emit("Transpose", {c.GO(0)}, {{"perm", inverse}}));
          })
    .rows(kTransposeRows);

constexpr RowRule kExpandRows{.axes = [](const Node& node, const Shape& out, RowAxes axes) {
  return of_first(node, aligned(*shape_of(node.input(0)), out, axes));
}};

// A size of 1 in `shape` keeps the input's size: broadcasting goes both ways.
ORTMODULE_OP("", Expand, 8)
    .input("input")
    .host_input("shape")
    .output("output")
    .traits(kView | kCheap)
    .infer([](InferContext& c) {
      std::optional<Shape> wanted;
      if (const auto dims = c.dims_value(1)) wanted = *dims;
      c.out(0, c.dtype(0), c.broadcast(c.shape(0), wanted ? &*wanted : nullptr));
    })
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.reduce_to(c.GO(0), c.I(0))); })
    .rows(kExpandRows);

ORTMODULE_OP("", Tile, 6)
    .input("input")
    .host_input("repeats")
    .output("output")
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      const auto repeats = c.dims_value(1);
      if (x && repeats && repeats->size() != x->size())
        c.error(str(repeats->size(), " repeats for an input of shape ", shape_text(*x)));
      if (!x || !repeats) {
        c.out(0, c.dtype(0), x ? std::optional<Shape>(c.fresh_shape(x->size())) : std::nullopt);
        return;
      }
      Shape out;
      for (size_t i = 0; i < x->size(); ++i) out.push_back((*x)[i] * (*repeats)[i]);
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::TileGrad", {c.GO(0), c.sizes_of(c.I(0))})); });

// Sums the copies: dX has `sizes`, each of which divides dY's.
ORTMODULE_OP("ai.ortmodule", TileGrad, 1)
    .input("dY")
    .host_input("sizes")
    .output("dX")
    .traits(kReduction)
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(1);
      std::optional<Shape> shape;
      if (dims)
        shape = *dims;
      else if (c.shape(0))
        shape = c.fresh_shape(c.shape(0)->size());
      c.out(0, c.dtype(0), std::move(shape));
    })
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg* repeats = f.div(f.shape(c.in(0)), c.in(1));
      NodeArg* pairs = f.concat({f.unsqueeze(repeats, {1}), f.unsqueeze(c.in(1), {1})}, 1);  // r0 s0 r1 s1 ...
      std::vector<int64_t> copies;
      for (int64_t i = 0; i < f.rank(c.in(0)); ++i) copies.push_back(2 * i);
      NodeArg* apart = c.emit("Reshape", {c.in(0), f.reshape(pairs, {-1})}, {{"allowzero", int64_t{1}}});
      c.out(0, copies.empty() ? c.emit("Identity", {c.in(0)}) : f.sum(apart, copies, false));
    });

int64_t block(InferContext& c) {
  const int64_t b = c.attr_int("blocksize", 0);
  if (b < 1 || b > (1 << 16)) c.error(str("blocksize should be positive and at most 65536, got ", b));
  return b;
}

// [N, C, H, W] -> [N, C / b^2, H b, W b]; mode DCR takes the block from the first channels, CRD from the last.
ORTMODULE_OP("", DepthToSpace, 1)
    .input("input")
    .output("output")
    .required_attr("blocksize", AttrKind::kInt)
    .attr("mode", AttrKind::kString)
    .infer([](InferContext& c) {
      const Dim b(block(c));
      if (const Shape* x = c.shape_of_rank(0, 4))
        c.out(0, c.dtype(0), Shape{(*x)[0], Dim::floor_div((*x)[1], b * b), (*x)[2] * b, (*x)[3] * b});
      else
        c.out(0, c.dtype(0), c.fresh_shape(4));
    })
    .grad({"input"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::DepthToSpaceGrad", {c.GO(0)},
                     {{"blocksize", c.node().get_int("blocksize", 1)}, {"mode", c.node().get_string("mode", "DCR")}}));
    });

void infer_space_to_depth(InferContext& c) {
  const Dim b(block(c));
  if (const Shape* x = c.shape_of_rank(0, 4))
    c.out(0, c.dtype(0), Shape{(*x)[0], (*x)[1] * b * b, Dim::floor_div((*x)[2], b), Dim::floor_div((*x)[3], b)});
  else
    c.out(0, c.dtype(0), c.fresh_shape(4));
}

// SpaceToDepth with DepthToSpace's two modes.
ORTMODULE_OP("ai.ortmodule", DepthToSpaceGrad, 1)
    .input("dY")
    .output("dX")
    .required_attr("blocksize", AttrKind::kInt)
    .attr("mode", AttrKind::kString)
    .infer(infer_space_to_depth)
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      const int64_t b = c.node().get_int("blocksize", 1);
      if (c.node().get_string("mode", "DCR") == "DCR")
        return c.out(0, c.emit("SpaceToDepth", {c.in(0)}, {{"blocksize", b}}));
      // [N, C, h, b, w, b] -> [N, C b b, h, w]
      const auto along = [&](int64_t axis) { return f.div(f.shape(c.in(0), axis, axis + 1), c.ints({b})); };
      NodeArg* head = f.shape(c.in(0), 0, 2);
      NodeArg* blocks = f.reshape(c.in(0), f.concat({head, along(2), c.ints({b}), along(3), c.ints({b})}));
      NodeArg* channels = f.mul(f.shape(c.in(0), 1, 2), c.ints({b * b}));
      c.out(0, f.reshape(f.transpose(blocks, {0, 1, 3, 5, 2, 4}),
                         f.concat({f.shape(c.in(0), 0, 1), channels, along(2), along(3)})));
    });

ORTMODULE_OP("", SpaceToDepth, 1)
    .input("input")
    .output("output")
    .required_attr("blocksize", AttrKind::kInt)
    .attr("mode", AttrKind::kString)
    .infer(infer_space_to_depth)
    .grad({"input"}, [](GradContext& c) {
      c.GI(0, c.emit("DepthToSpace", {c.GO(0)},
                     {{"blocksize", c.node().get_int("blocksize", 1)}, {"mode", c.node().get_string("mode", "DCR")}}));
    });

}  // namespace
}  // namespace ortmodule
