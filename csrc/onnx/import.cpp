#include "onnx/import.h"

#include <climits>
#include <unordered_set>

#include "base/container_type.h"
#include "base/status.h"
#include "onnx/free_sizes.h"
#include "onnx/graph_reader.h"
#include "onnx/wire.h"

namespace ortmodule {
namespace {

// Before protobuf makes objects of them: a node of six bytes takes some 300 in memory.
void check_size(const ModelSize& size, const Limits& limits) {
  if (size.nodes > limits.nodes)
    exceed("the model has ", size.nodes, " nodes, over the limit of ", limits.nodes, " (SessionOptions.max_nodes)");
  if (size.nesting > limits.nesting)
    exceed("the model has bodies nested ", size.nesting, " deep, over the limit of ", limits.nesting,
           " (SessionOptions.max_nesting)");
  if (size.longest_name > kLongestName)
    exceed("the model has a name of ", size.longest_name, " bytes, over the limit of ", kLongestName);
  ORTMODULE_CHECK_GRAPH(!size.broken_text, "the text at byte ", *size.broken_text, " of the model is no UTF-8");
}

pb::ModelProto parse(const void* data, size_t size, const Limits& limits) {
  ORTMODULE_CHECK(size <= INT_MAX, kParse, "a model of ", size, " bytes: protobuf reads at most ", INT_MAX,
                  "; store large tensors as external data");
  check_size(measure(data, size), limits);
  pb::ModelProto model;
  if (!model.ParseFromArray(data, static_cast<int>(size))) {
    const WireFault fault = first_malformed_field(data, size);
    fail(ErrorCode::kParse, "these ", size, " bytes are no ONNX model: at byte ", fault.offset,
         fault.where.empty() ? "" : " in " + fault.where, " stands ", fault.what);
  }
  ORTMODULE_CHECK(model.has_graph() || model.ir_version() != 0, kParse, "these ", size,
                  " bytes are no ONNX model: they hold neither a version nor a graph (read to byte ", size, ")");
  return model;
}

std::map<std::string, int64_t> read_opsets(const google::protobuf::RepeatedPtrField<pb::OperatorSetIdProto>& imports) {
  std::map<std::string, int64_t> opsets;
  for (const auto& entry : imports) {
    const std::string domain = entry.domain() == "ai.onnx" ? "" : entry.domain();
    const auto [it, inserted] = opsets.emplace(domain, entry.version());
    ORTMODULE_CHECK_GRAPH(inserted || it->second == entry.version(), "the model imports the domain '", domain,
                          "' at the versions ", it->second, " and ", entry.version());
    if (domain.empty())
      ORTMODULE_CHECK(entry.version() >= kOldestOpset && entry.version() <= kNewestOpset, kUnsupported,
                      "the model uses opset ", entry.version(), " of ai.onnx; ", kOldestOpset, " to ", kNewestOpset,
                      " are supported");
  }
  return opsets;
}

void check_versions(const pb::ModelProto& model) {
  constexpr int64_t kOldestIr = 3, kNewestIr = pb::Version::IR_VERSION;
  ORTMODULE_CHECK_GRAPH(model.has_ir_version(), "the model has no ir_version");
  ORTMODULE_CHECK(model.ir_version() >= kOldestIr && model.ir_version() <= kNewestIr, kUnsupported,
                  "the model has ir_version ", model.ir_version(), "; ", kOldestIr, " to ", kNewestIr,
                  " are supported");
  ORTMODULE_CHECK_GRAPH(model.has_graph(), "the model has no graph");
  ORTMODULE_CHECK_GRAPH(model.opset_import_size() > 0, "the model imports no operator set");
}

FunctionBody read_function(pb::FunctionProto& proto, TensorReader& tensors) {
  FunctionBody function;
  function.domain = proto.domain();
  function.name = proto.name();
  function.overload = proto.overload();
  function.body = std::make_shared<Graph>();
  function.body->opsets() = read_opsets(proto.opset_import());
  function.attributes.assign(proto.attribute().begin(), proto.attribute().end());
  GraphReader reader(*function.body, tensors, nullptr);
  reader.read(proto);
  for (auto& attr : *proto.mutable_attribute_proto())
    function.defaults[attr.name()] = reader.attribute(attr, str("function '", proto.name(), "'"));
  return function;
}

std::string type_text(DType dtype) {
  if (is_optional(dtype)) return "optional(" + type_text(content_of(dtype)) + ")";
  if (is_sequence(dtype)) return "seq(" + type_text(element_of(dtype)) + ")";
  return str("tensor(", dtype_name(dtype), ")");
}

DeclaredValue read_declared(const pb::ValueInfoProto& proto) {
  const DType dtype = read_type(proto.type(), "the value", proto.name()).dtype;
  DeclaredValue value{proto.name(), type_text(dtype), dtype};
  if (!proto.type().has_tensor_type()) return value;
  value.has_shape = proto.type().tensor_type().has_shape();
  for (const auto& dim : proto.type().tensor_type().shape().dim())
    value.shape.push_back({dim.has_dim_value() ? dim.dim_value() : -1, dim.dim_param()});
  return value;
}

ModelInfo read_info(const pb::ModelProto& model) {
  ModelInfo info;
  std::unordered_set<std::string> initialized;
  for (const auto& tensor : model.graph().initializer()) initialized.insert(tensor.name());
  for (const auto& input : model.graph().input())
    (initialized.count(input.name()) ? info.overridable : info.inputs).push_back(read_declared(input));
  for (const auto& output : model.graph().output()) info.outputs.push_back(read_declared(output));
  info.producer_name = model.producer_name();
  info.graph_name = model.graph().name();
  info.domain = model.domain();
  info.description = model.doc_string();
  info.graph_description = model.graph().doc_string();
  info.version = model.model_version();
  for (const auto& entry : model.metadata_props()) info.custom_metadata[entry.key()] = entry.value();
  return info;
}

// Takes the model's values of these inputs away.
void make_inputs(pb::ModelProto& model, const std::set<std::string>& fed) {
  if (fed.empty()) return;
  const auto& inputs = model.graph().input();
  auto& tensors = *model.mutable_graph()->mutable_initializer();
  for (const std::string& name : fed) {
    const auto named = [&name](const auto& value) { return value.name() == name; };
    const auto tensor = std::find_if(tensors.begin(), tensors.end(), named);
    ORTMODULE_CHECK_ARG(tensor != tensors.end() && std::any_of(inputs.begin(), inputs.end(), named), "'", name,
                        "' is no input of the model that has a value in it");
    tensors.erase(tensor);
  }
}

}  // namespace

std::unique_ptr<Graph> import_model(const void* data, size_t size, const ImportOptions& options, ModelInfo* info) {
  pb::ModelProto model = parse(data, size, options.limits);
  check_versions(model);
  auto graph = std::make_unique<Graph>();
  graph->opsets() = read_opsets(model.opset_import());
  for (const auto& entry : model.metadata_props()) graph->metadata()[entry.key()] = entry.value();
  set_free_sizes(model, options);
  make_inputs(model, options.fed);
  if (info) *info = read_info(model);
  TensorReader tensors(options);
  GraphReader(*graph, tensors, nullptr).read(*model.mutable_graph());
  tensors.check_all_taken();
  for (auto& proto : *model.mutable_functions()) graph->functions().push_back(read_function(proto, tensors));
  return graph;
}

}  // namespace ortmodule
