#include "transforms/row_region.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/status.h"
#include "records/grad_context.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
RowRule::Inputs row_inputs(const Node& node, size_t lead) {
  const Shape* out = shape_of(node.output(0));
  const RowRule* rule = row_rule(node);
  if (!out || out->size() < lead || lead == 0 || !rule || !rule->inputs) return std::nullopt;
  for (const NodeArg* o : node.outputs())
    if (o && o != node.output(0) && !rule->every_output && !o->uses().empty()) return std::nullopt;
  return rule->inputs(node, *out, lead);
}

InputAxes input_axes(const Node& node, RowAxes axes) {
  const Shape* out = shape_of(node.output(0));
  const RowRule* rule = row_rule(node);
  if (!shape_of(node.input(0)) || !out || out->size() <= std::max(axes.batch, axes.length)) return {};
  return rule && rule->axes ? rule->axes(node, *out, axes) : InputAxes{};
}

int64_t products_per_row(const Node& node) {
  const RowRule* rule = row_rule(node);
  if (!rule || !rule->product) return 0;
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
  std::vector<NodeArg*> inputs = node.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (roles[i].role == RowInput::kRows) inputs[i] = of(inputs[i], roles[i].lead, rows, &node);
    if (roles[i].role == RowInput::kBroadcast)
      inputs[i] = broadcast_rows(inputs[i], {out.begin(), out.begin() + static_cast<long>(lead)}, out.size() - lead,
                                 rows, &node);
  }
  CompactNode compact{node, lead, roles, graph_, node.op(), std::move(inputs), node.attributes(), rows};
  if (const RowRule* rule = row_rule(node); rule->compact) rule->compact(compact);
  if (compact.result) return set(node.output(0), rows, compact.result);
  Node* made =
      graph_.add_node(node.domain(), compact.op, compact.inputs, std::vector<std::string>(node.outputs().size(), ""),
                      std::move(compact.attributes), &node, node.name());
  made->metadata() = node.metadata();
  made->set_phase(node.phase());
  infer_node(*made);
  for (size_t i = 0; i < node.outputs().size(); ++i)
    if (node.output(i)) set(node.output(i), rows, made->output(i));
}

}  // namespace ortmodule
