// Concat and Split: each is the other's gradient.
#include <algorithm>

#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_concat(InferContext& c) {
  if (c.input_count() == 0) c.error("at least one input is needed");
  const Shape* known = nullptr;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (c.dtype(i) != c.dtype(0))
      c.error(str("inputs should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(i))));
    if (!known) known = c.shape(i);
  }
  if (!known) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  const size_t axis = c.axis(c.attr_int("axis", 0), known->size());
  Shape out = *known;
  Dim total(0);
  bool complete = true;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const Shape* x = c.shape(i);
    if (!x) {
      complete = false;
      continue;
    }
    if (x->size() != out.size())
      c.error(str("shapes ", shape_text(*known), " and ", shape_text(*x), " differ in rank"));
    total = total + (*x)[axis];
    for (size_t k = 0; k < out.size(); ++k) {
      if (k == axis || (*x)[k] == out[k] || !(*x)[k].is_known()) continue;
      if (out[k].is_known())
        c.error(str("shapes ", shape_text(*known), " and ", shape_text(*x), " differ on axis ", k));
      out[k] = (*x)[k];
    }
  }
  out[axis] = complete ? total : c.fresh_dim();
  const bool vector = out.size() == 1;
  c.out(0, c.dtype(0), std::move(out));
  if (!vector || !is_integer(c.dtype(0))) return;
  std::vector<Dim> values;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const auto part = c.dims_value(i);
    if (!part) return;
    values.insert(values.end(), part->begin(), part->end());
  }
  c.known(0, std::move(values));
}

// The inputs' sizes along the axis, as Split wants them.
NodeArg* part_sizes(GradContext& c, int64_t axis) {
  std::vector<Dim> dims;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (!c.I(i)->type().shape) break;
    const Shape& x = *c.I(i)->type().shape;
    dims.push_back(x[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(x.size()) : axis)]);
  }
  const bool symbolic = std::any_of(dims.begin(), dims.end(), [](const Dim& d) { return !d.is_known(); });
  if (dims.size() == c.input_count() && !symbolic) return c.sizes(dims);
  // Slices of host vectors stay in host memory.
  std::vector<NodeArg*> parts;
  for (size_t i = 0; i < c.input_count(); ++i)
    parts.push_back(c.emit("Slice", {c.sizes_of(c.I(i)), c.ints({axis}), c.ints({axis == -1 ? INT64_MAX : axis + 1})}));
  return c.emit("Concat", parts, {{"axis", int64_t{0}}});
}

constexpr RowRule kConcatRows{
    .inputs =
        [](const Node& node, const Shape& out, size_t lead) {
          RowRule::Inputs roles(std::vector<RowInput>(node.inputs().size(), RowInput{RowInput::kRows, lead}));
          for (const NodeArg* in : node.inputs())
            if (!shape_of(in) || !same_front(*shape_of(in), out, lead)) return RowRule::Inputs();
          return axis_of(node, 0) >= static_cast<int64_t>(lead) ? roles : std::nullopt;
        },
    .axes =
        [](const Node& node, const Shape&, RowAxes axes) {
          return touches(axis_of(node, 0), axes) ? InputAxes{} : InputAxes(node.inputs().size(), axes);
        },
    .compact = along_axis<0>.compact};

ORTMODULE_OP("", Concat, 4)
    .older(1, 3,
           [](UpgradeContext& c) {
             if (!c.attributes().count("axis")) c.set("axis", int64_t{1});
             c.rewrite(c.node().inputs());
           })
    .variadic_input("inputs")
    .output("concat_result")
    .required_attr("axis", AttrKind::kInt)
    .infer(infer_concat)
    .grad({"inputs"},
          [](GradContext& c) {
            const int64_t axis = c.node().get_int("axis", 0);
            std::vector<bool> wanted;
            for (size_t i = 0; i < c.input_count(); ++i) wanted.push_back(c.needs(i));
            const auto parts = c.emit_some("Split", {c.GO(0), part_sizes(c, axis)}, wanted, {{"axis", axis}});
            for (size_t i = 0; i < parts.size(); ++i)
              if (parts[i]) c.GI(i, parts[i]);
          })
    .rows(kConcatRows);

void infer_split(InferContext& c) {
  const size_t count = c.node().outputs().size();
  const Shape* x = c.shape(0);
  if (!x) {
    for (size_t i = 0; i < count; ++i) c.out(i, c.dtype(0), std::nullopt);
    return;
  }
  const size_t axis = c.axis(c.attr_int("axis", 0), x->size());
  std::vector<Dim> sizes;
  if (c.has(1)) {
    if (const auto given = c.dims_value(1)) sizes = *given;
    // Parts behind the last one that is wanted have no output: a joined constant has no gradient.
    if (!sizes.empty() && sizes.size() < count)
      c.error(str("split has ", sizes.size(), " sizes for ", count, " outputs"));
    Dim total(0);
    for (const Dim& d : sizes) total = total + d;
    if (!sizes.empty() && total.is_known() && (*x)[axis].is_known() && total != (*x)[axis])
      c.error(str("the split sizes sum to ", total.text(), ", the axis has size ", (*x)[axis].text()));
  } else {
    // Equal parts, rounded up; the last one takes what is left.
    const int64_t given = c.attr_int("num_outputs", static_cast<int64_t>(count));
    if (given < std::max<int64_t>(1, static_cast<int64_t>(count)))
      c.error(str("num_outputs is ", given, ", the node has ", count, " outputs"));
    const Dim parts(given);
    const Dim chunk = Dim::floor_div((*x)[axis] + parts - Dim(1), parts);
    for (size_t i = 0; i < count; ++i) sizes.push_back(chunk);
    if (!sizes.empty() && given == static_cast<int64_t>(count)) sizes.back() = (*x)[axis] - chunk * (parts - Dim(1));
    // Too few elements for so many parts: 5 over 4 are 2, 2, 1, 0.
    if ((*x)[axis].is_known())
      for (size_t i = 0; i < count; ++i) {
        const int64_t left = (*x)[axis].value() - static_cast<int64_t>(i) * chunk.value();
        sizes[i] = Dim(std::clamp<int64_t>(left, 0, chunk.value()));
      }
  }
  const Shape fresh = c.fresh_shape(axis + count);
  for (size_t i = 0; i < count; ++i) {
    Shape out = *x;
    out[axis] = i < sizes.size() ? sizes[i] : fresh[axis + i];
    c.out(i, c.dtype(0), std::move(out));
  }
}

ORTMODULE_OP("", Split, 13)
    .older(1, 12, [](UpgradeContext& c) { upgrade_ints_to_input(c, "split"); })
    .input("input")
    .host_input("split", Presence::kOptional)
    .output("outputs", Presence::kVariadic)
    .attr("axis", AttrKind::kInt)
    .attr("num_outputs", AttrKind::kInt)
    .traits(kView | kCheap)
    .infer(infer_split)
    .grad({"input"},
          [](GradContext& c) {
            std::vector<NodeArg*> parts;
            for (size_t i = 0; i < c.node().outputs().size(); ++i)
              parts.push_back(c.GO(i) ? c.GO(i) : c.zeros_like(c.O(i)));
            c.GI(0, c.emit("Concat", parts, {{"axis", c.node().get_int("axis", 0)}}));
          })
    .rows(along_axis<0, false, true>);

}  // namespace
}  // namespace ortmodule
