#include "onnx/import.h"

#include <climits>

#include "base/status.h"
#include "onnx/graph_reader.h"
#include "onnx/wire.h"

namespace ortmodule {
namespace {

pb::ModelProto parse(const void* data, size_t size) {
  ORTMODULE_CHECK(size <= INT_MAX, kParse, "a model of ", size, " bytes: protobuf reads at most ", INT_MAX,
                  "; store large tensors as external data");
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

}  // namespace

std::unique_ptr<Graph> import_model(const void* data, size_t size, const ImportOptions& options) {
  pb::ModelProto model = parse(data, size);
  check_versions(model);
  auto graph = std::make_unique<Graph>();
  graph->opsets() = read_opsets(model.opset_import());
  for (const auto& entry : model.metadata_props()) graph->metadata()[entry.key()] = entry.value();
  TensorReader tensors(options);
  GraphReader(*graph, tensors, nullptr).read(*model.mutable_graph());
  for (auto& proto : *model.mutable_functions()) graph->functions().push_back(read_function(proto, tensors));
  return graph;
}

}  // namespace ortmodule
