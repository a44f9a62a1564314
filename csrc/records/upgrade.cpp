#include "records/upgrade.h"

#include "base/status.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

// Where a function's attribute stands for one of the call, its value is not here to be turned into an input.
bool refers_to_formal(const Node& node, const std::string& attribute) {
  return node.metadata().count("ortmodule.ref." + attribute) > 0;
}

// Types as far as they follow from what is typed already. What a subgraph gives is not known before functions are
// inlined.
void infer_if_typed(Node& node) {
  for (const auto& [name, value] : node.attributes())
    if (std::holds_alternative<std::shared_ptr<Graph>>(value)) return;
  for (const NodeArg* in : node.inputs())
    if (in && in->type().dtype == DType::kUndefined) return;
  const Registry& registry = Registry::instance();
  const auto& opsets = node.graph().opsets();
  const auto it = opsets.find(node.domain());
  const OpRecord* record = node.record();
  if (!record) record = registry.find(node.domain(), node.op(), it == opsets.end() ? INT64_MAX : it->second);
  if (!record) return;
  record->check_node(node);
  infer_node(node);
}

// The node that stands in its place afterwards.
Node& upgrade_node(Node& node, int64_t opset) {
  const Registry& registry = Registry::instance();
  if (const OlderForm* form = registry.find_older(node.op(), opset)) {
    UpgradeContext context(node, opset);
    form->upgrade(context);
    return context.result();
  }
  if (const OpRecord* record = registry.find("", node.op(), opset)) {
    // An older form may have a record of its own instead of a rule: the node keeps that.
    if (record != registry.find("", node.op(), kUpgradedOpset)) node.set_record(record);
    return node;
  }
  const std::string versions = registry.versions(node.op());
  if (versions.empty()) {
    const std::string near = registry.suggestion("", node.op());
    fail(ErrorCode::kUnsupported, "unknown operator ", node.op(), " at opset ", opset, " (", node.describe(), ")",
         near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  fail(ErrorCode::kUnsupported, "[", node.op(), "] its form at opset ", opset, " is not supported (", node.describe(),
       "); opsets that work: ", versions);
}

// Replaces `old` by a node whose outputs have the names, types and uses of the old one's.
Node* replace_node(Graph& graph, Node* old, std::string op, const std::vector<NodeArg*>& inputs,
                   Attributes attributes) {
  struct Output {
    std::string name;
    TypeInfo type;
    std::vector<Use> uses;
    std::vector<size_t> graph_outputs;
  };
  Node* place = graph.add_node("", op, {}, {}, {}, old);
  std::vector<Output> outputs;
  for (NodeArg* value : old->outputs()) {
    Output& out = outputs.emplace_back();
    if (!value) continue;
    out.name = value->name();
    out.type = value->type();
    out.uses = value->uses();
    for (const Use& use : out.uses) use.node->set_input(use.index, nullptr);
    for (size_t i = 0; i < graph.outputs().size(); ++i)
      if (graph.outputs()[i] == value) out.graph_outputs.push_back(i);
    // A graph output cannot be empty for a moment: any other value holds its place.
    for (size_t i : out.graph_outputs) graph.set_output(i, graph.constant(TensorData::scalar_int(0)));
  }
  const std::string name = old->name();
  const std::map<std::string, std::string> metadata = old->metadata();
  graph.remove(old);
  std::vector<std::string> names;
  for (const Output& out : outputs) names.push_back(out.name);
  Node* node = graph.add_node("", op, inputs, names, std::move(attributes), place, name);
  graph.remove(place);
  node->metadata() = metadata;
  for (size_t k = 0; k < outputs.size(); ++k) {
    NodeArg* value = node->output(k);
    if (outputs[k].name.empty()) {
      graph.drop_output(node, k);
      continue;
    }
    value->set_type(outputs[k].type);
    for (const Use& use : outputs[k].uses) use.node->set_input(use.index, value);
    for (size_t i : outputs[k].graph_outputs) graph.set_output(i, value);
  }
  return node;
}

}  // namespace

DType UpgradeContext::dtype(size_t i) const {
  const NodeArg* value = node_->input(i);
  return value && value->type().dtype != DType::kUndefined ? value->type().dtype : DType::kFloat;
}

const Shape* UpgradeContext::shape(size_t i) const {
  const NodeArg* value = node_->input(i);
  return value && value->type().shape ? &*value->type().shape : nullptr;
}

std::optional<AttributeValue> UpgradeContext::take(const std::string& name) {
  if (refers_to_formal(*node_, name)) unsupported(str("the attribute '", name, "' of a function cannot be upgraded"));
  const auto it = attributes_.find(name);
  if (it == attributes_.end()) return std::nullopt;
  AttributeValue value = std::move(it->second);
  attributes_.erase(it);
  return value;
}

// The typed accessors of the node name operator and attribute where a value is of another kind.
std::optional<std::vector<int64_t>> UpgradeContext::take_ints(const std::string& name) {
  if (!take(name)) return std::nullopt;
  return node_->get_ints(name);
}

std::optional<int64_t> UpgradeContext::take_int(const std::string& name) {
  if (!take(name)) return std::nullopt;
  return node_->get_int(name, 0);
}

std::optional<double> UpgradeContext::take_float(const std::string& name) {
  if (!take(name)) return std::nullopt;
  return node_->get_float(name, 0);
}

std::optional<std::vector<double>> UpgradeContext::take_floats(const std::string& name) {
  const auto value = take(name);
  if (!value) return std::nullopt;
  const auto* list = std::get_if<std::vector<double>>(&*value);
  ORTMODULE_CHECK_GRAPH(list, "[", node_->op(), "] ", name, " should be a list of floats (", node_->describe(), ")");
  return *list;
}

NodeArg* UpgradeContext::emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
  Node* node = node_->graph().add_node("", op, inputs, {""}, std::move(attributes), node_, node_->name() + "/" + op);
  node->metadata() = node_->metadata();
  infer_if_typed(*node);
  return node->output(0);
}

NodeArg* UpgradeContext::ints(const std::vector<int64_t>& values) {
  return node_->graph().constant(TensorData::of_ints(values));
}

NodeArg* UpgradeContext::floats(const std::vector<double>& values) {
  std::string bytes;
  for (double v : values) {
    const auto f = static_cast<float>(v);
    bytes.append(reinterpret_cast<const char*>(&f), sizeof f);
  }
  return node_->graph().constant(TensorData{DType::kFloat, {static_cast<int64_t>(values.size())}, std::move(bytes)});
}

NodeArg* UpgradeContext::scalar(double value, DType dtype) {
  return node_->graph().constant(TensorData::scalar(dtype, value));
}

void UpgradeContext::rewrite(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
  std::vector<NodeArg*> present = inputs;
  while (!present.empty() && !present.back()) present.pop_back();
  node_ = replace_node(node_->graph(), node_, op, present, std::move(attributes));
}

void UpgradeContext::unsupported(const std::string& what) const {
  fail(ErrorCode::kUnsupported, "[", node_->op(), "] ", what, " (", node_->describe(), ", opset ", opset_,
       "); opsets that work: ", Registry::instance().versions(node_->op()));
}

void upgrade_ints_to_input(UpgradeContext& c, const char* attribute) {
  std::vector<NodeArg*> inputs = c.node().inputs();
  if (const auto values = c.take_ints(attribute)) inputs.push_back(c.ints(*values));
  c.rewrite(inputs);
}

void upgrade_axes(UpgradeContext& c) { upgrade_ints_to_input(c, "axes"); }

void upgrade_axis_broadcast(UpgradeContext& c) {
  const auto axis = c.take_int("axis");
  const bool broadcast = c.take_int("broadcast").value_or(0) != 0;
  c.drop("consumed_inputs");
  NodeArg* b = c.I(1);
  if (broadcast && axis) {
    const Shape *x = c.shape(0), *y = c.shape(1);
    if (!x || !y) c.unsupported("broadcasting along an axis needs inputs of known ranks");
    const auto rank = static_cast<int64_t>(x->size()), used = static_cast<int64_t>(y->size());
    const int64_t first = *axis < 0 ? *axis + rank : *axis, missing = rank - first - used;
    if (first < 0 || missing < 0) c.unsupported(str("B does not fit A from axis ", *axis, " on"));
    std::vector<int64_t> added;
    for (int64_t i = 0; i < missing; ++i) added.push_back(used + i);
    if (missing > 0) b = c.emit("Unsqueeze", {b, c.ints(added)});
  }
  c.rewrite({c.I(0), b});
}

void upgrade_flattened_axis(UpgradeContext& c) {
  const int64_t axis = c.take_int("axis").value_or(1);
  const Shape* x = c.shape(0);
  const bool last = axis == -1 || (x && axis == static_cast<int64_t>(x->size()) - 1);
  if (last) {
    c.set("axis", int64_t{-1});
    c.rewrite({c.I(0)});
    return;
  }
  NodeArg* matrix = c.emit("Flatten", {c.I(0)}, {{"axis", axis}});
  NodeArg* result = c.emit(c.node().op(), {matrix}, {{"axis", int64_t{-1}}});
  c.rewrite("Reshape", {result, c.emit("Shape", {c.I(0)})}, {{"allowzero", int64_t{1}}});
}

void upgrade_channel_slope(UpgradeContext& c) {
  c.drop("consumed_inputs");
  const Shape *x = c.shape(0), *slope = c.shape(1);
  const bool one = slope && (slope->size() != 1 || slope->front() == Dim(1));
  if (!one && !x) c.unsupported("a slope per channel needs an input of known rank");
  NodeArg* shaped = c.I(1);
  if (!one && x->size() > 2) {
    std::vector<int64_t> behind;
    for (size_t i = 1; i + 1 < x->size(); ++i) behind.push_back(static_cast<int64_t>(i));
    shaped = c.emit("Unsqueeze", {shaped, c.ints(behind)});
  }
  c.rewrite({c.I(0), shaped});
}

void upgrade(Graph& graph) {
  const auto it = graph.opsets().find("");
  const int64_t opset = it == graph.opsets().end() ? INT64_MAX : it->second;
  const bool older = opset < kUpgradedOpset;
  if (older) it->second = kUpgradedOpset;
  for (FunctionBody& function : graph.functions()) upgrade(*function.body);
  for (Node* node : graph.nodes()) {
    for (const auto& [name, value] : node->attributes())
      if (const auto* body = std::get_if<std::shared_ptr<Graph>>(&value); body && *body) upgrade(**body);
    if (!older) continue;
    infer_if_typed(node->domain().empty() ? upgrade_node(*node, opset) : *node);
  }
}

}  // namespace ortmodule
