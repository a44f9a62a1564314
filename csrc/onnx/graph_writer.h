// Graph -> GraphProto and FunctionProto.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "graph/graph.h"
#include "onnx/export.h"
#include "onnx/external_file.h"
#include "onnx/proto.h"

namespace ortmodule {

class GraphWriter {
 public:
  // `external` null: every tensor is written into the model.
  GraphWriter(const ExportOptions& options, ExternalFileWriter* external) : options_(options), external_(external) {}

  void write(const Graph& graph, pb::GraphProto* proto);
  void write(const FunctionBody& function, pb::FunctionProto* proto);
  // The domains of all nodes written so far.
  const std::set<std::string>& domains() const { return domains_; }
  void write_opsets(const std::map<std::string, int64_t>& known, const std::set<std::string>& domains,
                    google::protobuf::RepeatedPtrField<pb::OperatorSetIdProto>* imports) const;

 private:
  // Names of values inside a subgraph that stand for values outside.
  using Renames = std::map<std::string, std::string>;

  void write_graph(const Graph& graph, pb::GraphProto* proto, const Renames& renames);
  void write_node(const Node& node, pb::NodeProto* proto, const Renames& renames);
  void write_attribute(const std::string& name, const AttributeValue& value, pb::AttributeProto* proto,
                       const Renames& captured);
  void write_tensor(const std::string& name, const TensorData& data, pb::TensorProto* proto);
  void write_value(const NodeArg& value, pb::ValueInfoProto* proto);

  std::string unique_node_name(const std::string& name);

  const ExportOptions& options_;
  ExternalFileWriter* external_;
  std::set<std::string> domains_;
  std::unordered_set<std::string> node_names_;
  std::unordered_map<std::string, int> name_counters_;
  uint64_t inline_bytes_ = 0;
};

}  // namespace ortmodule
