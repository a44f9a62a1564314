// The graph: nodes, their values (NodeArg) and who owns what.
//
// A Graph owns its Nodes and its NodeArgs. A NodeArg knows its producer and every use; edges are pointers, never
// names. Names exist for printing, for files and for the graph's own inputs and outputs. Edges change only through
// the methods here, so that producers and uses cannot drift apart.
//
// Not here: type inference and verification (resolve.h), text (text.h), files (onnx/).
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dim.h"
#include "base/dtype.h"
#include "graph/attribute.h"
#include "ortmodule/export.h"

namespace ortmodule {

class Graph;
class Node;
class OpRecord;

// Type and shape of a value. A missing shape means: rank unknown until the run.
struct TypeInfo {
  DType dtype = DType::kUndefined;
  std::optional<Shape> shape;
  ORTMODULE_API std::string text() const;  // "float[batch, 768]", "int64[]", "float[?]" without a shape
};

// One use of a value: the input slot of a node.
struct Use {
  Node* node;
  size_t index;
};

class NodeArg {
 public:
  const std::string& name() const { return name_; }
  const TypeInfo& type() const { return type_; }
  void set_type(TypeInfo type) { type_ = std::move(type); }
  // Null for graph inputs and initializers.
  Node* producer() const { return producer_; }
  size_t output_index() const { return output_index_; }
  const std::vector<Use>& uses() const { return uses_; }
  bool is_graph_output() const { return graph_outputs_ > 0; }
  bool is_graph_input() const { return is_input_; }
  // Elements of a small int64 value (sizes, axes) that are known as dims before the run; set by type rules.
  const std::optional<std::vector<Dim>>& known_dims() const { return known_dims_; }
  void set_known_dims(std::optional<std::vector<Dim>> dims) { known_dims_ = std::move(dims); }
  // The constant behind an initializer, or null.
  const TensorData* constant() const { return constant_ ? &*constant_ : nullptr; }
  // The device whose memory it lies in ("cpu", "cuda:1"), once nodes are placed (placement/); empty before.
  const std::string& location() const { return location_; }
  void set_location(std::string location) { location_ = std::move(location); }
  // A number unique within the graph and stable over its life; passes index side tables by it.
  size_t id() const { return id_; }

 private:
  friend class Graph;
  friend class Node;
  std::string name_, location_;
  TypeInfo type_;
  Node* producer_ = nullptr;
  size_t output_index_ = 0;
  std::vector<Use> uses_;
  int graph_outputs_ = 0;
  bool is_input_ = false;
  bool is_shared_ = false;  // made by Graph::constant()
  std::optional<TensorData> constant_;
  std::optional<std::vector<Dim>> known_dims_;
  size_t id_ = 0;
};

// Which half of a training step a node belongs to; every node is kForward until the gradient is built.
enum class Phase { kForward, kBackward };

class Node {
 public:
  const std::string& name() const { return name_; }
  const std::string& domain() const { return domain_; }
  const std::string& op() const { return op_; }
  // "LayerNormalization" or "com.microsoft::Gelu".
  std::string qualified_op() const { return domain_.empty() ? op_ : domain_ + "::" + op_; }

  // An absent optional input or output is null.
  const std::vector<NodeArg*>& inputs() const { return inputs_; }
  const std::vector<NodeArg*>& outputs() const { return outputs_; }
  NodeArg* input(size_t i) const { return i < inputs_.size() ? inputs_[i] : nullptr; }
  NodeArg* output(size_t i) const { return i < outputs_.size() ? outputs_[i] : nullptr; }
  void set_input(size_t i, NodeArg* value);

  const Attributes& attributes() const { return attributes_; }
  void set_attribute(const std::string& name, AttributeValue value) { attributes_[name] = std::move(value); }
  // Typed access with a default; a value of another kind throws kInvalidGraph naming node and attribute.
  ORTMODULE_API int64_t get_int(const std::string& name, int64_t fallback) const;
  ORTMODULE_API double get_float(const std::string& name, double fallback) const;
  ORTMODULE_API std::string get_string(const std::string& name, const std::string& fallback) const;
  ORTMODULE_API std::vector<int64_t> get_ints(const std::string& name, const std::vector<int64_t>& fallback = {}) const;
  std::vector<std::string> get_strings(const std::string& name) const;
  const AttributeValue* find_attribute(const std::string& name) const;

  // Free text carried along and saved as metadata_props ("recompute", "source", ...).
  std::map<std::string, std::string>& metadata() { return metadata_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }
  // The execution provider that runs it and the device that it runs on, once nodes are placed (placement/); empty
  // before.
  const std::string& provider() const { return provider_; }
  const std::string& device() const { return device_; }
  void place(std::string provider, std::string device) {
    provider_ = std::move(provider);
    device_ = std::move(device);
  }
  // The operator's record, set by resolve(); null for an operator that the registry does not know.
  const OpRecord* record() const { return record_; }
  void set_record(const OpRecord* record) { record_ = record; }
  Graph& graph() const { return *graph_; }
  size_t id() const { return id_; }
  // How errors name the node: "LayerNormalization node 'ln_1'".
  ORTMODULE_API std::string describe() const;

 private:
  friend class Graph;
  std::string name_, domain_, op_, provider_, device_;
  std::vector<NodeArg*> inputs_, outputs_;
  std::vector<size_t> use_positions_;  // where input i's use stands in that value's list
  Attributes attributes_;
  std::map<std::string, std::string> metadata_;
  Phase phase_ = Phase::kForward;
  const OpRecord* record_ = nullptr;
  Graph* graph_ = nullptr;
  size_t id_ = 0;
  std::list<std::unique_ptr<Node>>::iterator position_;
};

// A model-local function (ONNX FunctionProto), kept as a graph whose inputs and outputs are the formal ones.
struct FunctionBody {
  std::string domain, name, overload;
  std::shared_ptr<Graph> body;
  std::vector<std::string> attributes;  // formal attributes without a default
  Attributes defaults;
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  // Values. A taken name throws kInvalidGraph; an empty name is replaced by a fresh one.
  NodeArg* add_input(const std::string& name, TypeInfo type);
  NodeArg* add_initializer(const std::string& name, TensorData data);
  // Equal small constants are shared.
  ORTMODULE_API NodeArg* constant(const TensorData& data);
  NodeArg* find(const std::string& name) const;

  // Appends a node before `before` (at the end when null). `outputs` are new values; an empty name asks for a fresh
  // one, and `n_outputs` counts them. Types are filled by resolve() or by infer_node().
  ORTMODULE_API Node* add_node(const std::string& domain, const std::string& op, const std::vector<NodeArg*>& inputs,
                               const std::vector<std::string>& output_names, Attributes attributes = {},
                               Node* before = nullptr, const std::string& name = "");
  // Adds output slot `index` to a node that lacks it (saved outputs, optional outputs); returns the value.
  NodeArg* materialize_output(Node* node, size_t index, const std::string& hint);

  // Makes output slot `index` absent; throws kInternal while the value is used or is a graph output.
  void drop_output(Node* node, size_t index);

  // Lets `to`, whose output slot `index` is absent, make a value that another node has made: its name, its type and
  // every use stay, and the other node's slot becomes absent.
  void move_output(NodeArg* value, Node* to, size_t index);

  void add_output(NodeArg* value);
  void set_output(size_t index, NodeArg* value);
  void clear_outputs();
  const std::vector<NodeArg*>& outputs() const { return outputs_; }
  const std::vector<NodeArg*>& inputs() const { return inputs_; }
  std::vector<NodeArg*> initializers() const;  // in the order in which they came

  // Every use of `from`, graph outputs included, becomes a use of `to`.
  ORTMODULE_API void replace_all_uses(NodeArg* from, NodeArg* to);
  // Removes a node; throws kInternal while one of its outputs is used or is a graph output.
  ORTMODULE_API void remove(Node* node);
  size_t remove_unused_initializers();  // how many that were
  // Removes an input that nothing uses.
  void remove_input(NodeArg* input);
  void move_before(Node* node, Node* before);

  size_t node_count() const { return nodes_.size(); }
  // Nodes in list order. After resolve() that order is topological.
  template <typename F>
  void for_each(F&& f) const {
    for (auto it = nodes_.begin(); it != nodes_.end();) {
      Node* node = (it++)->get();  // f may remove the node it is given
      f(*node);
    }
  }
  ORTMODULE_API std::vector<Node*> nodes() const;
  // Puts the list into `order`, which holds every node once.
  void reorder(const std::vector<Node*>& order);

  std::map<std::string, int64_t>& opsets() { return opsets_; }
  const std::map<std::string, int64_t>& opsets() const { return opsets_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::vector<FunctionBody>& functions() { return functions_; }
  const std::vector<FunctionBody>& functions() const { return functions_; }
  std::string fresh_name(const std::string& hint);
  size_t value_id_bound() const { return next_value_id_; }
  size_t node_id_bound() const { return next_node_id_; }

  // Whole-graph copy; values keep their names, nodes their order.
  std::unique_ptr<Graph> clone() const;

 private:
  NodeArg* new_value(const std::string& name);
  void add_use(NodeArg* value, Node* node, size_t index);
  void drop_use(NodeArg* value, Node* node, size_t index);
  void erase_value(NodeArg* value);

  friend class Node;
  std::string name_;
  std::list<std::unique_ptr<Node>> nodes_;
  std::unordered_map<std::string, std::unique_ptr<NodeArg>> values_;
  std::vector<NodeArg*> inputs_, outputs_;
  std::map<size_t, NodeArg*> initializers_;  // by id
  std::unordered_map<std::string, NodeArg*> shared_constants_;
  std::map<std::string, int64_t> opsets_;
  std::map<std::string, std::string> metadata_;
  std::vector<FunctionBody> functions_;
  std::unordered_map<std::string, size_t> name_counters_;
  size_t next_value_id_ = 0, next_node_id_ = 0;
};

}  // namespace ortmodule
