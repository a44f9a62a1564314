#include "records/row_rule.h"

#include <algorithm>

namespace ortmodule {
namespace {

RowRule::Inputs broadcasting_rows(const Node& node, const Shape& out, size_t lead) {
  const size_t rest = out.size() - lead;
  std::vector<RowInput> roles = all_whole(node);
  bool any = false;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const NodeArg* in = node.input(i);
    const FormalInput* formal = node.record()->formal_input(i);
    if (!in || (formal && formal->host)) continue;
    const Shape* x = shape_of(in);
    if (!x || x->size() > out.size()) return std::nullopt;
    if (x->size() <= rest) continue;
    if (x->size() == out.size() && same_front(*x, out, lead)) {
      roles[i] = {RowInput::kRows, lead};
      any = true;
    } else {
      roles[i] = {RowInput::kBroadcast, lead};
    }
  }
  if (!any) return std::nullopt;
  return roles;
}

InputAxes broadcasting_axes(const Node& node, const Shape& out, RowAxes axes) {
  InputAxes result;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const FormalInput* formal = node.record()->formal_input(i);
    const Shape* in = node.input(i) && !(formal && formal->host) ? shape_of(node.input(i)) : nullptr;
    result.push_back(in ? aligned(*in, out, axes) : std::nullopt);
  }
  return result;
}

constexpr RowRule kBroadcasting{.inputs = broadcasting_rows, .axes = broadcasting_axes};

bool has_axis(const OpRecord& record) {
  return std::any_of(record.attributes().begin(), record.attributes().end(),
                     [](const FormalAttribute& a) { return a.name == "axis"; });
}

}  // namespace

size_t CompactNode::rank() const {
  const Shape* x = shape_of(node.input(0));
  return x ? x->size() : 0;
}

const RowRule* row_rule(const Node& node) {
  const OpRecord& record = *node.record();
  if (record.row_rule()) return record.row_rule();
  const bool alone = record.has(kElementwise) && !has_axis(record);
  return alone && !record.has(kRandom) && !record.has(kSideEffect) ? &kBroadcasting : nullptr;
}

const Shape* shape_of(const NodeArg* value) { return value && value->type().shape ? &*value->type().shape : nullptr; }

bool same_front(const Shape& a, const Shape& b, size_t n) {
  return a.size() >= n && b.size() >= n && std::equal(a.begin(), a.begin() + static_cast<long>(n), b.begin());
}

std::vector<RowInput> all_whole(const Node& node) { return {node.inputs().size(), RowInput{RowInput::kWhole, 0}}; }

RowRule::Inputs rows_of(const Node& node, size_t i, const Shape& out, size_t lead) {
  const Shape* x = shape_of(node.input(i));
  if (!x || !same_front(*x, out, lead)) return std::nullopt;
  std::vector<RowInput> roles = all_whole(node);
  roles[i] = {RowInput::kRows, lead};
  return roles;
}

InputAxes of_first(const Node& node, std::optional<RowAxes> axes) {
  if (!axes) return {};
  InputAxes out(node.inputs().size());
  out[0] = axes;
  return out;
}

std::optional<RowAxes> aligned(const Shape& in, const Shape& out, RowAxes axes) {
  const size_t missing = out.size() - std::min(in.size(), out.size());
  if (in.size() > out.size() || axes.batch < missing || axes.length < missing) return std::nullopt;
  const RowAxes mine{axes.batch - missing, axes.length - missing};
  if (in[mine.batch] != out[axes.batch] || in[mine.length] != out[axes.length]) return std::nullopt;
  return mine;
}

int64_t axis_of(const Node& node, int64_t fallback) {
  const int64_t axis = node.get_int("axis", fallback);
  const Shape* x = shape_of(node.input(0));
  return axis < 0 && x ? axis + static_cast<int64_t>(x->size()) : axis;
}

std::optional<std::vector<int64_t>> constant_axes(const Node& node, size_t input, size_t rank) {
  const NodeArg* value = node.input(input);
  if (!value || !value->constant() || !is_integer(value->type().dtype)) return std::nullopt;
  std::vector<int64_t> axes = value->constant()->to_ints();
  for (int64_t& a : axes) a += a < 0 ? static_cast<int64_t>(rank) : 0;
  return axes;
}

bool axes_behind(const std::optional<std::vector<int64_t>>& axes, size_t lead) {
  return axes && std::all_of(axes->begin(), axes->end(), [&](int64_t a) { return a >= static_cast<int64_t>(lead); });
}

}  // namespace ortmodule
