// Operators that keep every element in row-major order: Reshape, Flatten, Squeeze, Unsqueeze. All of them are views.
#include <algorithm>

#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void back_to_input_shape(GradContext& c) {
  c.GI(0, c.emit("Reshape", {c.GO(0), c.sizes_of(c.I(0))}, {{"allowzero", int64_t{1}}}));
}

void infer_reshape(InferContext& c) {
  const auto wanted = c.dims_value(1);
  if (!wanted) {
    const Shape* length = c.shape(1);
    const bool known = length && length->size() == 1 && (*length)[0].is_known();
    c.out(0, c.dtype(0),
          known ? std::optional<Shape>(c.fresh_shape(static_cast<size_t>((*length)[0].value()))) : std::nullopt);
    return;
  }
  const Shape* x = c.shape(0);
  const bool allow_zero = c.attr_int("allowzero", 0) != 0;
  Shape out = *wanted;
  std::optional<size_t> open;
  Dim rest(1);
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].is_known() && out[i].value() == -1) {
      if (open) c.error("more than one size is -1");
      open = i;
      continue;
    }
    if (out[i].is_known() && out[i].value() == 0 && !allow_zero) {
      if (x && i >= x->size()) c.error(str("size ", i, " is 0, but the input has only ", x->size(), " dimensions"));
      out[i] = x ? (*x)[i] : c.fresh_shape(i + 1)[i];
    }
    rest = rest * out[i];
  }
  if (x) {
    const Dim total = product(*x, 0, x->size());
    if (open) {
      if (rest.is_known() && rest.value() == 0) c.error("-1 beside a size of 0 is ambiguous");
      if (total.is_known() && rest.is_known() && total.value() % rest.value() != 0)
        c.error(str("cannot reshape ", shape_text(*x), " to ", shape_text(*wanted)));
      out[*open] = Dim::floor_div(total, rest);
    } else if (total.is_known() && rest.is_known() && total.value() != rest.value()) {
      c.error(str("cannot reshape ", shape_text(*x), " to ", shape_text(*wanted)));
    }
  } else if (open) {
    out[*open] = c.fresh_shape(*open + 1)[*open];
  }
  const bool small = out.size() <= 1;
  c.out(0, c.dtype(0), std::move(out));
  if (small)
    if (auto dims = c.dims_value(0)) c.known(0, std::move(*dims));
}

// Some leading dims of the input are, taken together, the leading dims of the output.
RowRule::Inputs reshaped_rows(const Node& node, const Shape& out, size_t lead) {
  const Shape* x = shape_of(node.input(0));
  if (!x) return std::nullopt;
  for (size_t i = lead; i < out.size(); ++i)
    if (!out[i].is_known() || out[i].value() == 0) return std::nullopt;
  const Dim count = product(out, 0, lead);
  for (size_t k = 1; k <= x->size(); ++k) {
    if (product(*x, 0, k) != count) continue;
    std::vector<RowInput> roles = all_whole(node);
    roles[0] = {RowInput::kRows, k};
    return roles;
  }
  return std::nullopt;
}

// The input's axis that is the output's: of the same size, and with as many elements before it.
std::optional<size_t> kept_axis(const Shape& in, const Shape& out, size_t axis) {
  const Dim before = product(out, 0, axis);
  for (size_t a = 0; a < in.size(); ++a)
    if (in[a] == out[axis] && product(in, 0, a) == before) return a;
  return std::nullopt;
}

InputAxes reshaped_axes(const Node& node, const Shape& out, RowAxes axes) {
  const Shape& in = *shape_of(node.input(0));
  const auto batch = kept_axis(in, out, axes.batch), length = kept_axis(in, out, axes.length);
  return batch && length && *batch != *length ? of_first(node, RowAxes{*batch, *length}) : InputAxes{};
}

void reshape_compact(CompactNode& c) {
  const Shape &x = *shape_of(c.node.input(0)), &out = *shape_of(c.node.output(0));
  const auto from = [](const Shape& shape, size_t lead) {
    return Shape(shape.begin() + static_cast<long>(lead), shape.end());
  };
  const Shape rest = from(out, c.lead);
  if (from(x, c.roles[0].lead) == rest) {
    c.result = c.inputs[0];
    return;
  }
  std::vector<int64_t> sizes{0};
  for (const Dim& d : rest) sizes.push_back(d.value());
  c.op = "Reshape";
  c.inputs = {c.inputs[0], c.graph.constant(TensorData::of_ints(sizes))};
  c.attributes.clear();
}

constexpr RowRule kReshapedRows{.inputs = reshaped_rows, .axes = reshaped_axes, .compact = reshape_compact};

ORTMODULE_OP("", Reshape, 5)
    .older(1, 4, [](UpgradeContext& c) { upgrade_ints_to_input(c, "shape"); })
    .input("data")
    .host_input("shape")
    .output("reshaped")
    .attr("allowzero", AttrKind::kInt)
    .traits(kView | kCheap)
    .infer(infer_reshape)
    .grad({"data"}, back_to_input_shape)
    .rows(kReshapedRows);

ORTMODULE_OP("", Flatten, 1)
    .input("input")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .traits(kView | kCheap)
    .infer([](InferContext& c) {
      if (!c.shape(0)) {
        c.out(0, c.dtype(0), c.fresh_shape(2));
        return;
      }
      const Shape& x = *c.shape(0);
      const int64_t given = c.attr_int("axis", 1), rank = static_cast<int64_t>(x.size());
      if (given < -rank || given > rank) c.error(str("axis ", given, " is outside [", -rank, ", ", rank, "]"));
      const auto axis = static_cast<size_t>(given < 0 ? given + rank : given);
      c.out(0, c.dtype(0), Shape{product(x, 0, axis), product(x, axis, x.size())});
    })
    .grad({"input"}, back_to_input_shape)
    .rows(kReshapedRows);

void infer_squeeze(InferContext& c) {
  const auto known = c.dims_value(0);
  const Shape* x = c.shape(0);
  std::optional<Shape> out;
  const auto axes = c.ints_value(1);
  if (x && !c.has(1)) {
    // Every axis of size one goes: which ones these are must be known.
    const bool certain = std::all_of(x->begin(), x->end(), [](const Dim& d) { return d.is_known(); });
    if (certain) {
      out.emplace();
      for (const Dim& d : *x)
        if (d.value() != 1) out->push_back(d);
    }
  } else if (x && axes) {
    std::vector<bool> gone(x->size(), false);
    for (int64_t a : *axes) {
      const size_t axis = c.axis(a, x->size());
      if ((*x)[axis].is_known() && (*x)[axis].value() != 1)
        c.error(str("axis ", a, " has size ", (*x)[axis].value(), ", only size 1 can be squeezed"));
      gone[axis] = true;
    }
    out.emplace();
    for (size_t i = 0; i < x->size(); ++i)
      if (!gone[i]) out->push_back((*x)[i]);
  }
  c.out(0, c.dtype(0), std::move(out));
  if (known) c.known(0, *known);
}

ORTMODULE_OP("", Squeeze, 13)
    .older(1, 12, upgrade_axes)
    .input("data")
    .host_input("axes", Presence::kOptional)
    .output("squeezed")
    .traits(kView | kCheap)
    .infer(infer_squeeze)
    .grad({"data"},
          [](GradContext& c) {
            if (c.I(1))
              c.GI(0, c.emit("Unsqueeze", {c.GO(0), c.I(1)}));
            else
              back_to_input_shape(c);
          })
    .rows(kReshapedRows);

void infer_unsqueeze(InferContext& c) {
  const auto known = c.dims_value(0);
  const Shape* x = c.shape(0);
  const auto axes = c.ints_value(1);
  std::optional<Shape> out;
  if (x && axes) {
    const size_t rank = x->size() + axes->size();
    std::vector<bool> added(rank, false);
    for (int64_t a : *axes) {
      const size_t axis = c.axis(a, rank);
      if (added[axis]) c.error(str("axis ", a, " is given twice"));
      added[axis] = true;
    }
    out.emplace();
    for (size_t i = 0, from = 0; i < rank; ++i) out->push_back(added[i] ? Dim(1) : (*x)[from++]);
  }
  c.out(0, c.dtype(0), std::move(out));
  if (known && axes && axes->size() == 1) c.known(0, *known);
}

ORTMODULE_OP("", Unsqueeze, 13)
    .older(1, 12, upgrade_axes)
    .input("data")
    .host_input("axes")
    .output("expanded")
    .traits(kView | kCheap)
    .infer(infer_unsqueeze)
    .grad({"data"}, [](GradContext& c) { c.GI(0, c.emit("Squeeze", {c.GO(0), c.I(1)})); })
    .rows(kReshapedRows);

}  // namespace
}  // namespace ortmodule
