// Gather (whole slices by a list of positions, or one slice by a 0-d position) and Embedding, with their gradients.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

// Output 0 is the shape vector `input` as dims, or of the rank of `like`.
void infer_from_sizes(InferContext& c, size_t input) {
  std::optional<Shape> shape;
  if (const auto dims = c.dims_value(input))
    shape = *dims;
  else if (const Shape* length = c.shape(input); length && length->size() == 1 && (*length)[0].is_known())
    shape = c.fresh_shape(static_cast<size_t>((*length)[0].value()));
  c.out(0, c.dtype(0), std::move(shape));
}

void infer_gather(InferContext& c) {
  const Shape *x = c.shape(0), *indices = c.shape(1);
  if (!x || !indices) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  if (x->empty()) c.error("the data should have at least one dimension");
  const size_t axis = c.axis(c.attr_int("axis", 0), x->size());
  Shape out(x->begin(), x->begin() + static_cast<std::ptrdiff_t>(axis));
  out.insert(out.end(), indices->begin(), indices->end());
  out.insert(out.end(), x->begin() + static_cast<std::ptrdiff_t>(axis) + 1, x->end());
  c.out(0, c.dtype(0), std::move(out));
  const auto values = c.dims_value(0);
  const auto positions = c.ints_value(1);
  if (!values || !positions || x->size() != 1) return;
  std::vector<Dim> picked;
  for (int64_t p : *positions) picked.push_back((*values)[c.axis(p, values->size())]);
  c.known(0, std::move(picked));
}

// dY summed by position along `axis` into zeros of `sizes`; positions may be negative.
NodeArg* scatter_rows(BodyFormula& f, NodeArg* dy, NodeArg* positions, NodeArg* sizes, int64_t axis) {
  BodyContext& c = f.c;
  const int64_t rank = f.rank(c.node().output(0));
  axis = axis < 0 ? axis + rank : axis;
  NodeArg *before = f.part(sizes, 0, axis), *after = f.part(sizes, axis + 1, rank);
  positions = f.reshape(f.cast(positions, DType::kInt64), {-1});
  NodeArg* wrapped = f.add(positions, f.part(sizes, axis, axis + 1));
  positions = f.where(c.emit("Less", {positions, c.scalar_int(0)}), wrapped, positions);
  NodeArg* shape = f.concat({before, f.shape(positions), after});
  std::vector<int64_t> column(static_cast<size_t>(rank - axis), 1);
  column[0] = -1;
  NodeArg* indices = c.emit("Expand", {f.reshape(positions, column), shape});
  return f.scatter_add(sizes, indices, c.emit("Reshape", {dy, shape}, {{"allowzero", int64_t{1}}}), axis);
}

NodeArg* onto_base(BodyFormula& f, NodeArg* gradient) {
  return f.c.node().input(3) ? f.add(f.c.in(3), gradient) : gradient;
}

// A table that the rows of the positions look into, or positions along an axis behind the rows.
RowRule::Inputs gather_rows(const Node& node, const Shape& out, size_t lead) {
  const Shape* positions = shape_of(node.input(1));
  const bool table = axis_of(node, 0) == 0 && positions && positions->size() >= lead;
  return table && same_front(*positions, out, lead) ? rows_of(node, 1, out, lead)
                                                    : along_axis<0>.inputs(node, out, lead);
}

// The positions' dims take the place of one axis.
InputAxes gather_axes(const Node& node, const Shape&, RowAxes axes) {
  const Shape* positions = shape_of(node.input(1));
  if (!positions) return {};
  const auto axis = static_cast<size_t>(axis_of(node, 0));
  const size_t added = positions->size();
  const auto back = [&](size_t a) -> std::optional<size_t> {
    if (a < axis) return a;
    if (a < axis + added) return std::nullopt;
    return a - added + 1;
  };
  const auto batch = back(axes.batch), length = back(axes.length);
  return batch && length ? of_first(node, RowAxes{*batch, *length}) : InputAxes{};
}

constexpr RowRule kGatherRows{.inputs = gather_rows, .axes = gather_axes, .compact = [](CompactNode& c) {
                                if (c.roles[0].role != RowInput::kWhole) along_axis<0>.compact(c);
                              }};

// A constant 0-d position selects, and that is a view.
bool selects(const Node& node) {
  const NodeArg* indices = node.input(1);
  return indices->constant() && indices->constant()->dims.empty();
}

ORTMODULE_OP("", Gather, 1)
    .input("data")
    .input("indices")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .traits(kView)
    .shares(selects)
    .no_grad({"indices"})
    .infer(infer_gather)
    .grad({"data"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::GatherGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))},
                           {{"axis", c.node().get_int("axis", 0)}}));
          })
    .rows(kGatherRows);

// Both gradients are added to `base` where it is given: see transforms/accumulate_gradients.cpp.
ORTMODULE_OP("ai.ortmodule", GatherGrad, 1)
    .input("dY")
    .input("indices")
    .host_input("sizes")
    .optional_input("base")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .not_differentiable()
    .infer([](InferContext& c) { infer_from_sizes(c, 2); })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      c.out(0, onto_base(f, scatter_rows(f, c.in(0), c.in(1), c.in(2), c.node().get_int("axis", 0))));
    });

// Rows of `weight` [V, D] by `ids` (any shape); the row padding_idx receives no gradient.
ORTMODULE_OP("ai.ortmodule", Embedding, 1)
    .input("weight")
    .input("ids")
    .output("Y")
    .attr("padding_idx", AttrKind::kInt)
    .no_grad({"ids"})
    .infer([](InferContext& c) {
      const Shape *weight = c.shape_of_rank(0, 2), *ids = c.shape(1);
      if (!weight || !ids) {
        c.out(0, c.dtype(0), std::nullopt);
        return;
      }
      Shape out = *ids;
      out.push_back((*weight)[1]);
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"weight"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::EmbeddingGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))},
                           {{"padding_idx", c.node().get_int("padding_idx", -1)}}));
          })
    .body([](BodyContext& c) { c.out(0, c.emit("Gather", {c.in(0), c.in(1)}, {{"axis", int64_t{0}}})); })
    .rows(rows_of_input<1>);

ORTMODULE_OP("ai.ortmodule", EmbeddingGrad, 1)
    .input("dY")
    .input("ids")
    .host_input("sizes")
    .optional_input("base")
    .output("dW")
    .attr("padding_idx", AttrKind::kInt)
    .not_differentiable()
    .infer([](InferContext& c) { infer_from_sizes(c, 2); })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg *dy = c.in(0), *ids = f.cast(c.in(1), DType::kInt64);
      if (const int64_t padding = c.node().get_int("padding_idx", -1); padding >= 0) {
        NodeArg* padded = f.unsqueeze(c.emit("Equal", {ids, c.scalar_int(padding)}), {-1});
        dy = f.where(padded, c.scalar(0, dy), dy);
      }
      c.out(0, onto_base(f, scatter_rows(f, dy, ids, c.in(2), 0)));
    });

}  // namespace
}  // namespace ortmodule
