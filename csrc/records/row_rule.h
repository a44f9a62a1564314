// How rows pass through an operator: what `OpRecord::rows` is given.
//
// A value's rows are its positions along its first dims, `lead` of them; see Note [Compact rows] in ops/index/rows.cpp.
// An operator is row-wise where each row of its output is computed from the same row of its inputs. Passes that leave
// out rows which nobody reads (transforms/label_compaction.cpp, padding_removal.cpp) ask for that, and repeat the node
// on compact rows, where one dim stands in place of the leading ones. An operator without a rule that computes element
// by element has the one that broadcasting gives.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "records/registry.h"

namespace ortmodule {

struct RowInput {
  enum Role {
    kRows,       // row r of the output needs row r of this input
    kWhole,      // the same for every row (weights, scalars)
    kBroadcast,  // spread over some of the leading dims (position embeddings)
  } role;
  size_t lead;  // of this input, for kRows
};

// Where a value has the batch and the sequence axis: between [batch, length, ...] and attention's
// [batch, heads, length, size] rows are not in front.
struct RowAxes {
  size_t batch, length;
  bool operator==(const RowAxes&) const = default;
};

// Per input: the axes, or nothing for an input that does not have both. Empty where the node may mix positions.
using InputAxes = std::vector<std::optional<RowAxes>>;

// A row-wise node as it is written on compact rows: a rule changes what counts in dims.
struct CompactNode {
  const Node& node;
  size_t lead;  // of the output, before
  const std::vector<RowInput>& roles;
  Graph& graph;
  std::string op;
  std::vector<NodeArg*> inputs;  // compact where they have rows
  Attributes attributes;
  NodeArg* rows;              // which rows these are
  NodeArg* result = nullptr;  // what the first output is, where that takes no node

  size_t rank() const;  // of the whole input 0
  // An axis behind the leading dims keeps its meaning when it is counted from the end.
  int64_t from_end(int64_t axis) const { return axis < 0 ? axis : axis - static_cast<int64_t>(rank()); }
};

struct RowRule {
  using Inputs = std::optional<std::vector<RowInput>>;
  // The roles of the inputs when the output, of shape `out`, has `lead` leading dims; nothing, or null: not row-wise.
  Inputs (*inputs)(const Node& node, const Shape& out, size_t lead) = nullptr;
  // The inputs' axes from the output's; null: not known.
  InputAxes (*axes)(const Node& node, const Shape& out, RowAxes axes) = nullptr;
  void (*compact)(CompactNode& node) = nullptr;  // null: the node stays as it is
  bool every_output = false;                     // not the first alone has rows
  bool product = false;                          // a matrix product with input 1
};

// The record's own, or what broadcasting gives; null where the node may not be row-wise.
const RowRule* row_rule(const Node& node);

// --- what operators share
// ---------------------------------------------------------------------------------------------

const Shape* shape_of(const NodeArg* value);
bool same_front(const Shape& a, const Shape& b, size_t n);
std::vector<RowInput> all_whole(const Node& node);
// Input `i` gives the rows, with the leading dims that the output has.
RowRule::Inputs rows_of(const Node& node, size_t i, const Shape& out, size_t lead);
// The axes are input 0's, no other has both.
InputAxes of_first(const Node& node, std::optional<RowAxes> axes);
// Axes counted from the right, as broadcasting aligns them.
std::optional<RowAxes> aligned(const Shape& in, const Shape& out, RowAxes axes);
inline bool touches(int64_t axis, RowAxes axes) {
  return axis == static_cast<int64_t>(axes.batch) || axis == static_cast<int64_t>(axes.length);
}
// The attribute `axis`, made non-negative for input 0's rank.
int64_t axis_of(const Node& node, int64_t fallback);
// Axes of a constant input made non-negative for `rank`; nothing where they are not constant.
std::optional<std::vector<int64_t>> constant_axes(const Node& node, size_t input, size_t rank);
bool axes_behind(const std::optional<std::vector<int64_t>>& axes, size_t lead);

// Each row of input `i` gives one of the output's, by itself: dropout, a table that is looked into.
template <size_t i>
inline constexpr RowRule rows_of_input{
    .inputs = [](const Node& node, const Shape& out, size_t lead) { return rows_of(node, i, out, lead); },
    .axes = i == 0 ? +[](const Node& node, const Shape&, RowAxes axes) { return of_first(node, axes); } : nullptr};

// Works along the attribute `axis` of input 0, which it keeps; `to_end`: and along all behind it.
template <int64_t fallback, bool to_end = false, bool every_output = false>
inline constexpr RowRule along_axis{
    .inputs =
        [](const Node& node, const Shape& out, size_t lead) {
          return shape_of(node.input(0)) && axis_of(node, fallback) >= static_cast<int64_t>(lead)
                     ? rows_of(node, 0, out, lead)
                     : std::nullopt;
        },
    .axes =
        [](const Node& node, const Shape&, RowAxes axes) {
          const int64_t axis = axis_of(node, fallback), last = static_cast<int64_t>(std::max(axes.batch, axes.length));
          return touches(axis, axes) || (to_end && last >= axis) ? InputAxes{} : of_first(node, axes);
        },
    .compact = [](CompactNode& c) { c.attributes["axis"] = c.from_end(c.node.get_int("axis", fallback)); },
    .every_output = every_output};

// Works along constant axes that input `i` names; `keepdims`: where the attribute of that name is set.
template <size_t i, bool keepdims>
inline constexpr RowRule along_axes_input{
    .inputs =
        [](const Node& node, const Shape& out, size_t lead) {
          const Shape* x = shape_of(node.input(0));
          return x && axes_behind(constant_axes(node, i, x->size()), lead) ? rows_of(node, 0, out, lead) : std::nullopt;
        },
    .axes =
        [](const Node& node, const Shape&, RowAxes axes) {
          const auto named = constant_axes(node, i, shape_of(node.input(0))->size());
          if (!named || (keepdims && !node.get_int("keepdims", 1))) return InputAxes{};
          for (int64_t axis : *named)
            if (touches(axis, axes)) return InputAxes{};
          return of_first(node, axes);
        },
    .compact =
        [](CompactNode& c) {
          std::vector<int64_t> axes = *constant_axes(c.node, i, c.rank());
          for (int64_t& axis : axes) axis = c.from_end(axis);
          c.inputs[i] = c.graph.constant(TensorData::of_ints(axes));
        }};

}  // namespace ortmodule
