// Slice, its gradient SliceGrad (zeros with dY in place of the slice), and SliceScatter, torch's slice_scatter.
#include <algorithm>

#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

constexpr int64_t kFarAway = int64_t{1} << 30;  // a bound that no axis reaches: ONNX writes "to the end" so

// A non-negative bound within [0, d]. Exact for symbolic sizes too, through Max and Min where needed.
Dim clamp_bound(const Dim& bound, const Dim& d) {
  if (bound.is_known() && bound.value() >= kFarAway) return d;
  if (bound.is_known() && bound.value() <= -kFarAway) return Dim(0);
  if (bound.is_known() && d.is_known()) {
    const int64_t b = bound.value() < 0 ? bound.value() + d.value() : bound.value();
    return Dim(std::clamp<int64_t>(b, 0, d.value()));
  }
  if (bound == d || (bound.is_known() && bound.value() == 0)) return bound;
  if (bound.is_known() && bound.value() < 0) return Dim::max(d + bound, Dim(0));
  return Dim::min(bound, d);
}

// The number of elements that start, end and step leave of `d`; nothing where a rule for all values is too long.
std::optional<Dim> sliced_size(const Dim& d, const Dim& start, const Dim& end, int64_t step) {
  if (step > 0) {
    const Dim first = clamp_bound(start, d), last = clamp_bound(end, d);
    const Dim span = last - first;
    if (span.is_known()) return Dim(span.value() <= 0 ? 0 : (span.value() - 1) / step + 1);
    const bool whole = first == Dim(0);
    const Dim count = Dim::floor_div(span + Dim(step - 1), Dim(step));
    return whole ? count : Dim::max(count, Dim(0));
  }
  if (!d.is_known() || !start.is_known() || !end.is_known()) return std::nullopt;
  const int64_t n = d.value();
  int64_t first = start.value() < 0 ? start.value() + n : start.value();
  int64_t last = end.value() < 0 ? end.value() + n : end.value();
  first = std::clamp<int64_t>(first, 0, n - 1);
  last = end.value() <= -kFarAway ? -1 : std::clamp<int64_t>(last, -1, n - 1);
  return Dim(n == 0 || first <= last ? 0 : (first - last - 1) / -std::max(step, -INT64_MAX) + 1);
}

void infer_slice(InferContext& c) {
  if (!c.shape(0)) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  const Shape& x = *c.shape(0);
  const auto starts = c.dims_value(1), ends = c.dims_value(2);
  const auto axes = c.ints_value(3), steps = c.ints_value(4);
  Shape out = c.fresh_shape(x.size());
  if ((c.has(3) && !axes) || (!c.has(3) && !starts)) {
    c.out(0, c.dtype(0), std::move(out));  // any axis may be cut
    return;
  }
  const size_t count = axes ? axes->size() : starts->size();
  if ((starts && starts->size() != count) || (ends && ends->size() != count) || (steps && steps->size() != count))
    c.error("starts, ends, axes and steps should have one length");
  std::vector<bool> cut(x.size(), false);
  for (size_t k = 0; k < count; ++k) {
    const size_t axis = c.axis(axes ? (*axes)[k] : static_cast<int64_t>(k), x.size());
    cut[axis] = true;
    if (!starts || !ends || (c.has(4) && !steps)) continue;
    const int64_t step = steps ? (*steps)[k] : 1;
    if (step == 0) c.error("a step of 0");
    if (const auto size = sliced_size(x[axis], (*starts)[k], (*ends)[k], step)) out[axis] = *size;
  }
  for (size_t i = 0; i < x.size(); ++i)
    if (!cut[i]) out[i] = x[i];
  c.out(0, c.dtype(0), std::move(out));
  const auto values = c.dims_value(0);
  if (values && x.size() == 1 && starts && ends && count == 1 && (!steps || (*steps)[0] == 1)) {
    const Dim n(static_cast<int64_t>(values->size()));
    const Dim first = clamp_bound((*starts)[0], n), last = clamp_bound((*ends)[0], n);
    if (first.is_known() && last.is_known() && first.value() <= last.value() && (!c.has(4) || steps))
      c.known(0, {values->begin() + first.value(), values->begin() + last.value()});
  }
}

// One axis after the other, the last first: zeros with dY in the rows that a slice of 0, 1, ... names.
void slice_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg *dx = c.in(0), *sizes = c.in(1);
  const int64_t rank = f.rank(c.node().output(0));
  const TensorData* given = c.in(4) ? c.in(4)->constant() : nullptr;
  std::vector<int64_t> axes;
  if (given) axes = given->to_ints();
  if (!c.in(4) && f.rank(c.in(2)) == 1 && (*c.in(2)->type().shape)[0].is_known())
    for (int64_t i = 0; i < (*c.in(2)->type().shape)[0].value(); ++i) axes.push_back(i);
  else if (!given)
    return;  // which axes are cut is known at run time only
  const auto element = [&](size_t input, size_t k) {
    const auto at = static_cast<int64_t>(k);
    return f.cast(axes.size() == 1 ? c.in(input) : f.part(f.cast(c.in(input), DType::kInt64), at, at + 1),
                  DType::kInt64);
  };
  for (size_t k = axes.size(); k-- > 0;) {
    const int64_t axis = axes[k] < 0 ? axes[k] + rank : axes[k];
    NodeArg* size = f.part(sizes, axis, axis + 1);
    NodeArg* rows = c.emit(
        "Slice", {f.range(size), element(2, k), element(3, k), c.ints({0}), c.in(5) ? element(5, k) : c.ints({1})});
    std::vector<int64_t> column(static_cast<size_t>(rank - axis), 1);
    column[0] = -1;
    NodeArg* indices = c.emit("Expand", {f.reshape(rows, column), f.shape(dx)});
    NodeArg* target = f.concat({f.shape(dx, 0, axis), size, f.shape(dx, axis + 1)});
    dx = c.emit("ScatterElements", {f.filled(target, 0, dx->type().dtype), indices, dx}, {{"axis", axis}});
  }
  c.out(0, dx == c.in(0) ? c.emit("Identity", {dx}) : dx);
}

// Torch has no view that runs backwards.
bool runs_forwards(const Node& node) {
  const NodeArg* steps = node.inputs().size() > 4 ? node.input(4) : nullptr;
  if (!steps || !steps->constant()) return true;
  const std::vector<int64_t> values = steps->constant()->to_ints();
  return std::all_of(values.begin(), values.end(), [](int64_t step) { return step > 0; });
}

ORTMODULE_OP("", Slice, 10)
    .older(1, 9,
           [](UpgradeContext& c) {
             const auto starts = c.take_ints("starts"), ends = c.take_ints("ends"), axes = c.take_ints("axes");
             if (!starts || !ends) c.unsupported("the attributes starts and ends are needed");
             c.rewrite({c.I(0), c.ints(*starts), c.ints(*ends), axes ? c.ints(*axes) : nullptr});
           })
    .input("data")
    .host_input("starts")
    .host_input("ends")
    .host_input("axes", Presence::kOptional)
    .host_input("steps", Presence::kOptional)
    .output("output")
    .traits(kView | kCheap)
    .shares(runs_forwards)
    .infer(infer_slice)
    .grad({"data"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::SliceGrad", {c.GO(0), c.sizes_of(c.I(0)), c.I(1), c.I(2), c.I(3), c.I(4)}));
          })
    .rows(along_axes_input<3, false>);

// Zeros of shape `sizes` with dY where Slice(starts, ends, axes, steps) looks.
void slice_grad(OpRecord& op) {
  op.input("dY")
      .host_input("sizes")
      .host_input("starts")
      .host_input("ends")
      .host_input("axes", Presence::kOptional)
      .host_input("steps", Presence::kOptional)
      .output("dX")
      .not_differentiable()
      .infer([](InferContext& c) {
        const auto dims = c.dims_value(1);
        c.out(0, c.dtype(0),
              dims         ? std::optional<Shape>(*dims)
              : c.shape(0) ? std::optional<Shape>(c.fresh_shape(c.shape(0)->size()))
                           : std::nullopt);
      })
      .body(slice_grad_body);
}

ORTMODULE_OP("ai.ortmodule", SliceGrad, 1).apply(slice_grad);
ORTMODULE_OP("com.microsoft", SliceGrad, 1).apply(slice_grad);

// x with src in place of x[starts:ends:steps] along `axis`; starts, ends and steps hold one element each.
ORTMODULE_OP("ai.ortmodule", SliceScatter, 1)
    .input("X")
    .input("src")
    .host_input("starts")
    .host_input("ends")
    .host_input("steps", Presence::kOptional)
    .output("Y")
    .attr("axis", AttrKind::kInt)
    .infer(infer_same)
    .grad({"X", "src"},
          [](GradContext& c) {
            const int64_t axis = c.node().get_int("axis", 0);
            if (c.needs(0))
              c.GI(0, c.emit("ai.ortmodule::SliceScatter", {c.GO(0), c.zeros_like(c.I(1)), c.I(2), c.I(3), c.I(4)},
                             {{"axis", axis}}));
            if (c.needs(1)) c.GI(1, c.emit("Slice", {c.GO(0), c.I(2), c.I(3), c.ints({axis}), c.I(4)}));
          })
    .body([](BodyContext& c) {
      // Positions along the axis, sliced like the data, tell where the rows of src go: with the axis first,
      // ScatterND replaces whole rows.
      NodeArg* x = c.in(0);
      ORTMODULE_CHECK(x->type().shape, kUnsupported, "SliceScatter has no form in plain ONNX without a known rank (",
                      c.node().describe(), ")");
      const auto rank = static_cast<int64_t>(x->type().shape->size());
      const int64_t axis = (c.node().get_int("axis", 0) + rank) % rank;
      std::vector<int64_t> swap(static_cast<size_t>(rank));
      for (int64_t i = 0; i < rank; ++i) swap[static_cast<size_t>(i)] = i;
      std::swap(swap[0], swap[static_cast<size_t>(axis)]);
      NodeArg* size = c.emit("Squeeze", {c.emit("Shape", {x}, {{"start", axis}, {"end", axis + 1}}), c.ints({0})});
      NodeArg* all = c.emit("Range", {c.scalar_int(0), size, c.scalar_int(1)});
      NodeArg* rows = c.emit("Slice", {all, c.in(2), c.in(3), c.ints({0}), c.in(4)});
      NodeArg* moved = c.emit("Transpose", {x}, {{"perm", swap}});
      NodeArg* source = c.emit("Transpose", {c.in(1)}, {{"perm", swap}});
      NodeArg* written = c.emit("ScatterND", {moved, c.emit("Unsqueeze", {rows, c.ints({1})}), source});
      c.out(0, c.emit("Transpose", {written}, {{"perm", swap}}));
    });

}  // namespace
}  // namespace ortmodule
