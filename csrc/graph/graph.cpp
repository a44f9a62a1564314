#include "graph/graph.h"

#include <algorithm>

#include "base/status.h"

namespace ortmodule {
namespace {

template <typename T>
const T& expect_kind(const Node& node, const std::string& name, const AttributeValue& value, const char* wanted) {
  const T* typed = std::get_if<T>(&value);
  ORTMODULE_CHECK_GRAPH(typed, "[", node.op(), "] attribute '", name, "' should be of kind ", wanted, ", got ",
                        attribute_kind(value), " (", node.describe(), ")");
  return *typed;
}

std::string constant_key(const TensorData& data) {
  std::string key = std::string(dtype_name(data.dtype)) + ":";
  for (int64_t d : data.dims) key += std::to_string(d) + ",";
  return (key + ":").append(*data.bytes);
}

}  // namespace

std::string TypeInfo::text() const {
  return std::string(dtype_name(dtype)) + (shape ? shape_text(*shape) : std::string("[?]"));
}

const AttributeValue* Node::find_attribute(const std::string& name) const {
  auto it = attributes_.find(name);
  return it == attributes_.end() ? nullptr : &it->second;
}

int64_t Node::get_int(const std::string& name, int64_t fallback) const {
  const AttributeValue* v = find_attribute(name);
  return v ? expect_kind<int64_t>(*this, name, *v, "int") : fallback;
}

double Node::get_float(const std::string& name, double fallback) const {
  const AttributeValue* v = find_attribute(name);
  return v ? expect_kind<double>(*this, name, *v, "float") : fallback;
}

std::string Node::get_string(const std::string& name, const std::string& fallback) const {
  const AttributeValue* v = find_attribute(name);
  return v ? expect_kind<std::string>(*this, name, *v, "string") : fallback;
}

std::vector<int64_t> Node::get_ints(const std::string& name, const std::vector<int64_t>& fallback) const {
  const AttributeValue* v = find_attribute(name);
  return v ? expect_kind<std::vector<int64_t>>(*this, name, *v, "ints") : fallback;
}

std::vector<std::string> Node::get_strings(const std::string& name) const {
  const AttributeValue* v = find_attribute(name);
  return v ? expect_kind<std::vector<std::string>>(*this, name, *v, "strings") : std::vector<std::string>{};
}

std::string Node::describe() const { return qualified_op() + " node '" + name_ + "'"; }

void Node::set_input(size_t i, NodeArg* value) {
  if (i >= inputs_.size()) inputs_.resize(i + 1, nullptr);
  if (inputs_[i] == value) return;
  if (inputs_[i]) graph_->drop_use(inputs_[i], this, i);
  inputs_[i] = value;
  if (value) graph_->add_use(value, this, i);
}

NodeArg* Graph::new_value(const std::string& name) {
  const std::string chosen = name.empty() ? fresh_name("v") : name;
  auto [it, inserted] = values_.try_emplace(chosen, nullptr);
  ORTMODULE_CHECK_GRAPH(inserted, "the name '", chosen, "' is given to two values of graph '", name_,
                        "'; every value is assigned once");
  it->second = std::make_unique<NodeArg>();
  it->second->name_ = chosen;
  it->second->id_ = next_value_id_++;
  return it->second.get();
}

std::string Graph::fresh_name(const std::string& hint) {
  if (!values_.count(hint) && hint != "v") return hint;
  while (true) {
    std::string name = hint + "_" + std::to_string(name_counters_[hint]++);
    if (!values_.count(name)) return name;
  }
}

NodeArg* Graph::add_input(const std::string& name, TypeInfo type) {
  NodeArg* value = new_value(name);
  value->type_ = std::move(type);
  value->is_input_ = true;
  inputs_.push_back(value);
  return value;
}

NodeArg* Graph::add_initializer(const std::string& name, TensorData data) {
  const size_t width = dtype_size(data.dtype);
  const bool fits = data.bytes && (width == 0 || data.bytes->size() == static_cast<size_t>(data.elements()) * width);
  ORTMODULE_CHECK_GRAPH(fits, "the initializer '", name, "' has ", data.bytes ? data.bytes->size() : 0, " bytes for ",
                        data.elements(), " elements of ", dtype_name(data.dtype));
  NodeArg* value = new_value(name);
  Shape shape(data.dims.begin(), data.dims.end());
  value->type_ = {data.dtype, std::move(shape)};
  value->constant_ = std::move(data);
  initializers_.emplace_hint(initializers_.end(), value->id_, value);
  return value;
}

NodeArg* Graph::constant(const TensorData& data) {
  auto [it, inserted] = shared_constants_.try_emplace(constant_key(data), nullptr);
  if (inserted) {
    it->second = add_initializer(fresh_name("const"), data);
    it->second->is_shared_ = true;
  }
  return it->second;
}

NodeArg* Graph::find(const std::string& name) const {
  auto it = values_.find(name);
  return it == values_.end() ? nullptr : it->second.get();
}

void Graph::add_use(NodeArg* value, Node* node, size_t index) {
  if (node->use_positions_.size() <= index) node->use_positions_.resize(index + 1, 0);
  node->use_positions_[index] = value->uses_.size();
  value->uses_.push_back({node, index});
}

void Graph::drop_use(NodeArg* value, Node* node, size_t index) {
  auto& uses = value->uses_;
  const size_t at = node->use_positions_.at(index);
  ORTMODULE_INTERNAL(at < uses.size() && uses[at].node == node && uses[at].index == index, "value '", value->name_,
                     "' does not know its use by ", node->describe());
  uses[at] = uses.back();  // constant time: a scalar may have as many uses as the graph has nodes
  uses[at].node->use_positions_[uses[at].index] = at;
  uses.pop_back();
}

Node* Graph::add_node(const std::string& domain, const std::string& op, const std::vector<NodeArg*>& inputs,
                      const std::vector<std::string>& output_names, Attributes attributes, Node* before,
                      const std::string& name) {
  for (size_t i = 0; i < output_names.size(); ++i) {  // refused before anything changes
    const std::string& output = output_names[i];
    const bool twice = !output.empty() &&
                       std::find(output_names.begin(), output_names.begin() + i, output) != output_names.begin() + i;
    ORTMODULE_CHECK_GRAPH(!twice && !values_.count(output), "the name '", output, "' is given to two values of graph '",
                          name_, "'; every value is assigned once");
  }
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->domain_ = domain == "ai.onnx" ? "" : domain;
  node->op_ = op;
  node->attributes_ = std::move(attributes);
  node->graph_ = this;
  node->id_ = next_node_id_++;
  node->inputs_ = inputs;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i]) add_use(inputs[i], node, i);
  for (size_t i = 0; i < output_names.size(); ++i) {
    NodeArg* value = new_value(output_names[i]);
    value->producer_ = node;
    value->output_index_ = i;
    node->outputs_.push_back(value);
  }
  node->name_ = !name.empty() ? name : (node->outputs_.empty() ? op : node->outputs_[0]->name_);
  node->position_ = nodes_.insert(before ? before->position_ : nodes_.end(), std::move(owned));
  return node;
}

NodeArg* Graph::materialize_output(Node* node, size_t index, const std::string& hint) {
  if (node->outputs_.size() <= index) node->outputs_.resize(index + 1, nullptr);
  if (!node->outputs_[index]) {
    NodeArg* value = new_value(fresh_name(hint));
    value->producer_ = node;
    value->output_index_ = index;
    node->outputs_[index] = value;
  }
  return node->outputs_[index];
}

void Graph::move_output(NodeArg* value, Node* to, size_t index) {
  ORTMODULE_CHECK(value->producer_ && value->producer_ != to && !to->output(index), kInternal, "'", value->name(),
                  "' cannot become output ", index, " of ", to->describe());
  value->producer_->outputs_[value->output_index_] = nullptr;
  if (to->outputs_.size() <= index) to->outputs_.resize(index + 1, nullptr);
  to->outputs_[index] = value;
  value->producer_ = to;
  value->output_index_ = index;
}

void Graph::drop_output(Node* node, size_t index) {
  NodeArg* value = node->output(index);
  if (!value) return;
  ORTMODULE_INTERNAL(value->uses_.empty() && value->graph_outputs_ == 0, "cannot drop output ", index, " of ",
                     node->describe(), ": '", value->name_, "' is in use");
  erase_value(value);
  node->outputs_[index] = nullptr;
  while (!node->outputs_.empty() && !node->outputs_.back()) node->outputs_.pop_back();
}

void Graph::add_output(NodeArg* value) {
  ++value->graph_outputs_;
  outputs_.push_back(value);
}

void Graph::set_output(size_t index, NodeArg* value) {
  --outputs_[index]->graph_outputs_;
  ++value->graph_outputs_;
  outputs_[index] = value;
}

void Graph::clear_outputs() {
  for (NodeArg* value : outputs_) --value->graph_outputs_;
  outputs_.clear();
}

std::vector<NodeArg*> Graph::initializers() const {
  std::vector<NodeArg*> out;
  out.reserve(initializers_.size());
  for (const auto& [id, value] : initializers_) out.push_back(value);
  return out;
}

void Graph::replace_all_uses(NodeArg* from, NodeArg* to) {
  if (from == to) return;
  std::vector<Use> uses = std::move(from->uses_);
  from->uses_.clear();
  for (const Use& use : uses) {
    use.node->inputs_[use.index] = to;
    add_use(to, use.node, use.index);
  }
  if (!from->is_graph_output()) return;
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i] == from) set_output(i, to);
}

void Graph::erase_value(NodeArg* value) {
  if (value->is_shared_) shared_constants_.erase(constant_key(*value->constant_));
  if (value->constant_) initializers_.erase(value->id_);
  values_.erase(value->name_);
}

void Graph::remove(Node* node) {
  for (NodeArg* out : node->outputs_) {
    ORTMODULE_INTERNAL(!out || (out->uses_.empty() && out->graph_outputs_ == 0), "cannot remove ", node->describe(),
                       ": its output '", out->name_, "' is in use");
  }
  for (size_t i = 0; i < node->inputs_.size(); ++i)
    if (node->inputs_[i]) drop_use(node->inputs_[i], node, i);
  for (NodeArg* out : node->outputs_)
    if (out) values_.erase(out->name_);
  nodes_.erase(node->position_);
}

size_t Graph::remove_unused_initializers() {
  const size_t before = initializers_.size();
  for (auto it = initializers_.begin(); it != initializers_.end();) {
    NodeArg* value = (it++)->second;
    if (value->uses_.empty() && value->graph_outputs_ == 0) erase_value(value);
  }
  return before - initializers_.size();
}

void Graph::remove_input(NodeArg* input) {
  ORTMODULE_INTERNAL(input->uses_.empty() && input->graph_outputs_ == 0, "cannot remove the used input '", input->name_,
                     "'");
  inputs_.erase(std::find(inputs_.begin(), inputs_.end(), input));
  erase_value(input);
}

void Graph::move_before(Node* node, Node* before) {
  nodes_.splice(before ? before->position_ : nodes_.end(), nodes_, node->position_);
}

std::vector<Node*> Graph::nodes() const {
  std::vector<Node*> out;
  out.reserve(nodes_.size());
  for (const auto& node : nodes_) out.push_back(node.get());
  return out;
}

void Graph::reorder(const std::vector<Node*>& order) {
  ORTMODULE_INTERNAL(order.size() == nodes_.size(), "a new order must hold every node once");
  for (Node* node : order) nodes_.splice(nodes_.end(), nodes_, node->position_);
}

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>(name_);
  copy->next_node_id_ = next_node_id_;
  copy->opsets_ = opsets_;
  copy->metadata_ = metadata_;
  copy->functions_ = functions_;
  std::unordered_map<const NodeArg*, NodeArg*> map;
  for (const NodeArg* in : inputs_) {
    NodeArg* c = copy->add_input(in->name_, in->type_);
    c->location_ = in->location_;
    map[in] = c;
  }
  for (const auto& [id, init] : initializers_) {
    map[init] = copy->add_initializer(init->name_, *init->constant_);
    map[init]->location_ = init->location_;
  }
  for (const auto& [key, value] : shared_constants_) {
    copy->shared_constants_[key] = map.at(value);
    map.at(value)->is_shared_ = true;
  }
  for (const auto& node : nodes_) {
    auto owned = std::make_unique<Node>();
    Node* n = owned.get();
    n->name_ = node->name_;
    n->domain_ = node->domain_;
    n->op_ = node->op_;
    n->attributes_ = node->attributes_;
    for (auto& [name, value] : n->attributes_)  // the copy's bodies change without the original's
      if (auto* body = std::get_if<std::shared_ptr<Graph>>(&value)) *body = (*body)->clone();
    n->metadata_ = node->metadata_;
    n->phase_ = node->phase_;
    n->provider_ = node->provider_;
    n->device_ = node->device_;
    n->record_ = node->record_;
    n->graph_ = copy.get();
    n->id_ = node->id_;  // kept: symbols that rules invent are named after it
    for (size_t i = 0; i < node->outputs_.size(); ++i) {
      const NodeArg* out = node->outputs_[i];
      NodeArg* c = nullptr;
      if (out) {
        c = copy->new_value(out->name_);
        c->type_ = out->type_;
        c->location_ = out->location_;
        c->known_dims_ = out->known_dims_;
        c->producer_ = n;
        c->output_index_ = i;
        map[out] = c;
      }
      n->outputs_.push_back(c);
    }
    n->position_ = copy->nodes_.insert(copy->nodes_.end(), std::move(owned));
  }
  auto target = copy->nodes_.begin();
  for (const auto& node : nodes_) {  // edges second: list order need not be topological
    Node* n = (target++)->get();
    for (size_t i = 0; i < node->inputs_.size(); ++i) {
      NodeArg* c = node->inputs_[i] ? map.at(node->inputs_[i]) : nullptr;
      n->inputs_.push_back(c);
      if (c) copy->add_use(c, n, i);
    }
  }
  for (const NodeArg* out : outputs_) copy->add_output(map.at(out));
  return copy;
}

}  // namespace ortmodule
