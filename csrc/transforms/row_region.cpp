#include "transforms/row_region.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/registry.h"
#include "ops/resolve.h"

namespace ortmodule {
namespace {

using Roles = std::optional<std::vector<RowInput>>;

const Shape* shape_of(const NodeArg* value) { return value && value->type().shape ? &*value->type().shape : nullptr; }

bool same_front(const Shape& a, const Shape& b, size_t n) {
  return a.size() >= n && b.size() >= n && std::equal(a.begin(), a.begin() + static_cast<long>(n), b.begin());
}

std::vector<RowInput> all_whole(const Node& node) { return {node.inputs().size(), RowInput{RowInput::kWhole, 0}}; }

// Input `i` gives the rows, with the leading dims that the output has.
Roles rows_of(const Node& node, size_t i, const Shape& out, size_t lead) {
  const Shape* x = shape_of(node.input(i));
  if (!x || !same_front(*x, out, lead)) return std::nullopt;
  std::vector<RowInput> roles = all_whole(node);
  roles[i] = {RowInput::kRows, lead};
  return roles;
}

Roles elementwise(const Node& node, const Shape& out, size_t lead) {
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

// Reshape and its kin: some leading dims of the input are, taken together, the leading dims of the output.
Roles reshape(const Node& node, const Shape& out, size_t lead) {
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

bool axes_behind(const std::optional<std::vector<int64_t>>& axes, size_t lead) {
  return axes && std::all_of(axes->begin(), axes->end(), [&](int64_t a) { return a >= static_cast<int64_t>(lead); });
}

int64_t axis_of(const Node& node, int64_t fallback, size_t rank) {
  const int64_t axis = node.get_int("axis", fallback);
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

bool is_reshape(const std::string& op) {
  return op == "Reshape" || op == "Flatten" || op == "Squeeze" || op == "Unsqueeze";
}

bool is_reduction(const Node& node) { return node.record()->has(kReduction) && node.op().starts_with("Reduce"); }

// Operators with an attribute axis that counts in input 0, and its default.
const std::map<std::string, int64_t>& axis_operators() {
  static const std::map<std::string, int64_t> ops{{"LayerNormalization", -1},
                                                  {"RMSNormalization", -1},
                                                  {"Softmax", -1},
                                                  {"LogSoftmax", -1},
                                                  {"Split", 0},
                                                  {"Gather", 0}};
  return ops;
}

Roles standard_roles(const Node& node, const Shape& out, size_t lead) {
  const std::string& op = node.op();
  const Shape *a = shape_of(node.input(0)), *b = shape_of(node.input(1));
  if (!a) return std::nullopt;
  const size_t rank = a->size();
  if (op == "MatMul") return b && b->size() == 2 && rank > lead ? rows_of(node, 0, out, lead) : std::nullopt;
  if (op == "Gemm") {
    const Shape* bias = shape_of(node.input(2));
    if (node.get_int("transA", 0) || lead != 1 || (node.input(2) && (!bias || bias->size() > 1))) return std::nullopt;
    return rows_of(node, 0, out, lead);
  }
  if (is_reshape(op)) return reshape(node, out, lead);
  if (op == "Transpose") {
    const std::vector<int64_t> perm = node.get_ints("perm");
    for (size_t i = 0; i < lead; ++i)
      if (i >= perm.size() || perm[i] != static_cast<int64_t>(i)) return std::nullopt;
    return rows_of(node, 0, out, lead);
  }
  if (op == "Concat") {
    if (axis_of(node, 0, rank) < static_cast<int64_t>(lead)) return std::nullopt;
    std::vector<RowInput> roles(node.inputs().size(), RowInput{RowInput::kRows, lead});
    for (const NodeArg* in : node.inputs())
      if (!shape_of(in) || !same_front(*shape_of(in), out, lead)) return std::nullopt;
    return roles;
  }
  if (op == "Slice")
    return axes_behind(constant_axes(node, 3, rank), lead) ? rows_of(node, 0, out, lead) : std::nullopt;
  if (op == "Gather" && axis_of(node, 0, rank) == 0 && b && b->size() >= lead && same_front(*b, out, lead)) {
    std::vector<RowInput> roles = all_whole(node);  // a table that the rows of the positions look into
    roles[1] = {RowInput::kRows, lead};
    return roles;
  }
  if (const auto it = axis_operators().find(op); it != axis_operators().end())
    return axis_of(node, it->second, rank) >= static_cast<int64_t>(lead) ? rows_of(node, 0, out, lead) : std::nullopt;
  if (is_reduction(node))
    return axes_behind(constant_axes(node, 1, rank), lead) ? rows_of(node, 0, out, lead) : std::nullopt;
  return std::nullopt;
}

bool has_axis(const OpRecord& record) {
  return std::any_of(record.attributes().begin(), record.attributes().end(),
                     [](const FormalAttribute& a) { return a.name == "axis"; });
}

}  // namespace

std::optional<std::vector<int64_t>> constant_axes(const Node& node, size_t input, size_t rank) {
  const NodeArg* value = node.input(input);
  if (!value || !value->constant() || !is_integer(value->type().dtype)) return std::nullopt;
  std::vector<int64_t> axes = value->constant()->to_ints();
  for (int64_t& a : axes) a += a < 0 ? static_cast<int64_t>(rank) : 0;
  return axes;
}

std::optional<std::vector<RowInput>> row_inputs(const Node& node, size_t lead) {
  const Shape* out = shape_of(node.output(0));
  if (!out || out->size() < lead || lead == 0) return std::nullopt;
  for (const NodeArg* o : node.outputs())
    if (o && o != node.output(0) && node.op() != "Split" && !o->uses().empty()) return std::nullopt;
  const std::string op = node.qualified_op();
  if (op == "ai.ortmodule::Linear") return out->size() > lead ? rows_of(node, 0, *out, lead) : std::nullopt;
  if (op == "ai.ortmodule::PhiloxDropout") return rows_of(node, 0, *out, lead);
  if (op == "ai.ortmodule::Embedding") return rows_of(node, 1, *out, lead);
  if (node.record()->has(kRandom) || node.record()->has(kSideEffect)) return std::nullopt;
  if (node.record()->has(kElementwise) && !has_axis(*node.record())) return elementwise(node, *out, lead);
  return node.domain().empty() ? standard_roles(node, *out, lead) : std::nullopt;
}

int64_t products_per_row(const Node& node) {
  if (node.op() != "Linear" && node.op() != "MatMul" && node.op() != "Gemm") return 0;
  const Shape* w = shape_of(node.input(1));
  int64_t n = 1;
  for (const Dim& d : w ? *w : Shape{}) n *= d.is_known() ? d.value() : 1024;
  return n;
}

std::optional<int64_t> sliced_rows_start(const Node& node, size_t lead) {
  if (node.qualified_op() != "Slice" || lead == 0) return std::nullopt;
  const Shape *x = shape_of(node.input(0)), *y = shape_of(node.output(0));
  if (!x || !y || x->size() < lead) return std::nullopt;
  const auto axes = constant_axes(node, 3, x->size());
  const NodeArg *starts = node.input(1), *steps = node.input(4);
  if (!axes || axes->size() != 1 || (*axes)[0] != static_cast<int64_t>(lead) - 1) return std::nullopt;
  if (!starts || !starts->constant() || (steps && (!steps->constant() || steps->constant()->to_ints()[0] != 1)))
    return std::nullopt;
  int64_t start = starts->constant()->to_ints()[0];
  const Dim& length = (*x)[lead - 1];
  if (start < 0) {
    if (!length.is_known()) return std::nullopt;
    start = std::max<int64_t>(0, start + length.value());
  }
  if (!bound_dims(node.graph(), {length, (*y)[lead - 1]})) return std::nullopt;
  return start;
}

bool bound_dims(const Graph& graph, const Shape& dims) {
  std::vector<std::string> names;
  for (const Dim& d : dims) d.collect_symbols(names);
  if (names.empty()) return true;
  std::set<std::string> bound;
  for (const NodeArg* in : graph.inputs())
    for (const Dim& d : in->type().shape ? *in->type().shape : Shape{})
      if (const auto symbol = d.lone_symbol()) bound.insert(*symbol);
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return bound.count(name) > 0; });
}

NodeArg* sizes_value(Graph& graph, const Shape& dims, Node* before) {
  std::vector<int64_t> values;
  std::vector<std::string> texts;
  for (const Dim& d : dims) {
    if (d.is_known()) values.push_back(d.value());
    texts.push_back(d.text());
  }
  if (values.size() == dims.size()) return graph.constant(TensorData::of_ints(values));
  return CompactRows(graph).emit("ai.ortmodule::Sizes", {}, {{"exprs", texts}}, before);
}

NodeArg* CompactRows::emit(const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes, Node* before) {
  const auto [domain, name] = split_op(op);
  Node* node = graph_.add_node(domain, name, inputs, {""}, std::move(attributes), before);
  infer_node(*node);
  return node->output(0);
}

NodeArg* CompactRows::of(NodeArg* value, size_t lead, NodeArg* rows, Node* before) {
  if (const auto it = made_.find({value, rows}); it != made_.end()) return it->second;
  NodeArg*& gathered = gathered_[{value, rows}];
  if (!gathered)
    gathered = emit("ai.ortmodule::GatherRows", {value, rows}, {{"lead", static_cast<int64_t>(lead)}}, before);
  return gathered;
}

NodeArg* CompactRows::broadcast_rows(NodeArg* value, const Shape& lead_dims, size_t rest, NodeArg* rows, Node* before) {
  const Shape& have = *value->type().shape;
  Shape whole = lead_dims;
  whole.insert(whole.end(), have.end() - static_cast<long>(rest), have.end());
  return of(emit("Expand", {value, sizes_value(graph_, whole, before)}, {}, before), lead_dims.size(), rows, before);
}

void CompactRows::repeat(Node& node, size_t lead, const std::vector<RowInput>& roles, NodeArg* rows) {
  const Shape& out = *node.output(0)->type().shape;
  const size_t rank = node.input(0) && shape_of(node.input(0)) ? shape_of(node.input(0))->size() : 0;
  std::vector<NodeArg*> inputs = node.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (roles[i].role == RowInput::kRows) inputs[i] = of(inputs[i], roles[i].lead, rows, &node);
    if (roles[i].role == RowInput::kBroadcast)
      inputs[i] = broadcast_rows(inputs[i], {out.begin(), out.begin() + static_cast<long>(lead)}, out.size() - lead,
                                 rows, &node);
  }
  if (node.domain().empty() && is_reshape(node.op())) {
    const Shape &x = *node.input(0)->type().shape, rest(out.begin() + static_cast<long>(lead), out.end());
    if (Shape(x.begin() + static_cast<long>(roles[0].lead), x.end()) == rest)
      return set(node.output(0), rows, inputs[0]);
    std::vector<int64_t> sizes{0};
    for (const Dim& d : rest) sizes.push_back(d.value());
    return set(node.output(0), rows,
               emit("Reshape", {inputs[0], graph_.constant(TensorData::of_ints(sizes))}, {}, &node));
  }

  Attributes attributes = node.attributes();
  // Axes behind the leading dims keep their meaning when they are counted from the end.
  const auto from_end = [&](int64_t axis) { return axis < 0 ? axis : axis - static_cast<int64_t>(rank); };
  const auto axes_input = [&](size_t i) {
    std::vector<int64_t> axes = *constant_axes(node, i, rank);
    std::transform(axes.begin(), axes.end(), axes.begin(), from_end);
    inputs[i] = graph_.constant(TensorData::of_ints(axes));
  };
  if (node.domain().empty()) {
    const auto it = axis_operators().find(node.op());
    const bool table = node.op() == "Gather" && roles[0].role == RowInput::kWhole;
    if (node.op() == "Concat" || (it != axis_operators().end() && !table))
      attributes["axis"] = from_end(node.get_int("axis", node.op() == "Concat" ? 0 : it->second));
    if (node.op() == "Slice") axes_input(3);
    if (is_reduction(node)) axes_input(1);
    if (node.op() == "Transpose") {
      std::vector<int64_t> perm{0};
      for (size_t i = lead; i < rank; ++i) perm.push_back(node.get_ints("perm")[i] - static_cast<int64_t>(lead) + 1);
      attributes["perm"] = perm;
    }
  }
  Node* made = graph_.add_node(node.domain(), node.op(), inputs, std::vector<std::string>(node.outputs().size(), ""),
                               std::move(attributes), &node, node.name());
  made->metadata() = node.metadata();
  made->set_phase(node.phase());
  infer_node(*made);
  for (size_t i = 0; i < node.outputs().size(); ++i)
    if (node.output(i)) set(node.output(i), rows, made->output(i));
}

}  // namespace ortmodule
