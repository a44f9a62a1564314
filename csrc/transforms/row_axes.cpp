#include "transforms/row_axes.h"

#include <algorithm>

#include "ops/registry.h"
#include "transforms/row_region.h"

namespace ortmodule {
namespace {

using Axes = std::optional<RowAxes>;

const Shape* shape_of(const NodeArg* value) { return value && value->type().shape ? &*value->type().shape : nullptr; }

std::vector<Axes> first_only(const Node& node, Axes axes) {
  std::vector<Axes> out(node.inputs().size());
  if (!axes) return {};
  out[0] = axes;
  return out;
}

// Axes counted from the right, as broadcasting aligns them.
Axes aligned(const Shape& in, const Shape& out, RowAxes axes) {
  const size_t missing = out.size() - std::min(in.size(), out.size());
  if (in.size() > out.size() || axes.batch < missing || axes.length < missing) return std::nullopt;
  const RowAxes mine{axes.batch - missing, axes.length - missing};
  if (in[mine.batch] != out[axes.batch] || in[mine.length] != out[axes.length]) return std::nullopt;
  return mine;
}

std::vector<Axes> broadcast(const Node& node, const Shape& out, RowAxes axes) {
  std::vector<Axes> result;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const FormalInput* formal = node.record()->formal_input(i);
    const Shape* in = node.input(i) && !(formal && formal->host) ? shape_of(node.input(i)) : nullptr;
    result.push_back(in ? aligned(*in, out, axes) : std::nullopt);
  }
  return result;
}

// The input axis of a Reshape that is the output's axis: the same size, and as many elements before it.
std::optional<size_t> kept_axis(const Shape& in, const Shape& out, size_t axis) {
  const Dim before = product(out, 0, axis);
  for (size_t a = 0; a < in.size(); ++a)
    if (in[a] == out[axis] && product(in, 0, a) == before) return a;
  return std::nullopt;
}

Axes reshape(const Shape& in, const Shape& out, RowAxes axes) {
  const auto batch = kept_axis(in, out, axes.batch), length = kept_axis(in, out, axes.length);
  if (!batch || !length || *batch == *length) return std::nullopt;
  return RowAxes{*batch, *length};
}

Axes transposed(const Node& node, RowAxes axes) {
  const std::vector<int64_t> perm = node.get_ints("perm");
  if (perm.size() <= std::max(axes.batch, axes.length)) return std::nullopt;
  return RowAxes{static_cast<size_t>(perm[axes.batch]), static_cast<size_t>(perm[axes.length])};
}

size_t positive(int64_t axis, size_t rank) {
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

bool touches(size_t axis, RowAxes axes) { return axis == axes.batch || axis == axes.length; }

// Gather of constant positions along another axis: the positions' rank takes the place of one axis.
Axes gathered(const Node& node, size_t rank, RowAxes axes) {
  const Shape* positions = shape_of(node.input(1));
  if (!positions) return std::nullopt;
  const size_t axis = positive(node.get_int("axis", 0), rank), added = positions->size();
  const auto back = [&](size_t a) -> std::optional<size_t> {
    if (a < axis) return a;
    if (a < axis + added) return std::nullopt;
    return a - added + 1;
  };
  const auto batch = back(axes.batch), length = back(axes.length);
  if (!batch || !length) return std::nullopt;
  return RowAxes{*batch, *length};
}

}  // namespace

std::vector<std::optional<RowAxes>> input_axes(const Node& node, RowAxes axes) {
  const Shape *in = shape_of(node.input(0)), *out = shape_of(node.output(0));
  if (!in || !out || out->size() <= std::max(axes.batch, axes.length)) return {};
  const std::string& op = node.op();
  const size_t rank = in->size();
  const bool last_free = axes.batch + 1 < out->size() && axes.length + 1 < out->size();
  if (node.qualified_op() == "ai.ortmodule::PhiloxDropout") return first_only(node, axes);
  if (node.qualified_op() == "ai.ortmodule::Linear") return last_free ? first_only(node, axes) : std::vector<Axes>{};
  if (node.record()->has(kRandom) || node.record()->has(kSideEffect)) return {};
  const auto& attributes = node.record()->attributes();
  const bool has_axis =
      std::any_of(attributes.begin(), attributes.end(), [](const FormalAttribute& a) { return a.name == "axis"; });
  if (node.record()->has(kElementwise) && !has_axis) return broadcast(node, *out, axes);
  if (!node.domain().empty()) return {};
  if (op == "Expand") return first_only(node, aligned(*in, *out, axes));
  if (op == "Transpose") return first_only(node, transposed(node, axes));
  if (op == "Reshape" || op == "Flatten" || op == "Squeeze" || op == "Unsqueeze")
    return first_only(node, reshape(*in, *out, axes));
  if (op == "Gather") return first_only(node, gathered(node, rank, axes));
  if (op == "Slice") {
    const auto sliced = constant_axes(node, 3, rank);
    if (!sliced) return {};
    for (int64_t a : *sliced)
      if (touches(static_cast<size_t>(a), axes)) return {};
    return first_only(node, axes);
  }
  if (op == "LayerNormalization" || op == "RMSNormalization") {
    const size_t first = positive(node.get_int("axis", -1), rank);
    return axes.batch < first && axes.length < first ? first_only(node, axes) : std::vector<Axes>{};
  }
  if (op == "Split" || op == "Concat" || op == "Softmax") {
    if (touches(positive(node.get_int("axis", op == "Softmax" ? -1 : 0), rank), axes)) return {};
    if (op != "Concat") return first_only(node, axes);
    return std::vector<Axes>(node.inputs().size(), axes);
  }
  if (node.record()->has(kReduction) && op.starts_with("Reduce") && node.get_int("keepdims", 1)) {
    const auto reduced = constant_axes(node, 1, rank);
    if (!reduced) return {};
    for (int64_t a : *reduced)
      if (touches(static_cast<size_t>(a), axes)) return {};
    return first_only(node, axes);
  }
  return {};
}

}  // namespace ortmodule
