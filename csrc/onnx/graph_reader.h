// GraphProto and FunctionProto -> Graph, with the scopes of nested subgraphs.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "onnx/proto.h"
#include "onnx/tensor_reader.h"

namespace ortmodule {

class GraphReader {
 public:
  // `outer` is the reader of the graph around a subgraph, null for the model's own graph and for functions.
  GraphReader(Graph& graph, TensorReader& tensors, GraphReader* outer)
      : graph_(graph), tensors_(tensors), outer_(outer) {}

  void read(pb::GraphProto& proto);
  void read(pb::FunctionProto& proto);
  // Every kind but a subgraph; `owner` names the node in errors.
  AttributeValue attribute(pb::AttributeProto& proto, const std::string& owner);

 private:
  void add_initializers(pb::GraphProto& proto);
  void add_inputs(const pb::GraphProto& proto);
  void add_nodes(google::protobuf::RepeatedPtrField<pb::NodeProto>& protos);
  bool fold_constant(pb::NodeProto& proto);
  Node* add_node(const pb::NodeProto& proto);
  void connect(Node& node, pb::NodeProto& proto);
  void add_value_types(const google::protobuf::RepeatedPtrField<pb::ValueInfoProto>& infos);
  void set_declared_type(NodeArg* value, const pb::ValueInfoProto& info);
  void check_output(const NodeArg& value, const pb::ValueInfoProto& info) const;
  // The value called `name` here or in a graph around this one (then as a captured input); null when there is none.
  NodeArg* lookup(const std::string& name);

  Graph& graph_;
  TensorReader& tensors_;
  GraphReader* outer_;
  std::vector<std::string> captured_;  // names that this subgraph took from outside, in order
};

// A dim_param: an expression, or a lone symbol made of its text where it is none.
Dim read_dim(const std::string& text);
// `text` as an identifier; different texts give different identifiers.
std::string sanitized_symbol(const std::string& text);
// Type and shape of a value; throws kUnsupported for maps and sparse tensors.
TypeInfo read_type(const pb::TypeProto& proto, const char* kind, const std::string& name);

}  // namespace ortmodule
