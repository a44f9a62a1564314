#include "onnx/export.h"

#include <climits>
#include <optional>

#include "base/status.h"
#include "onnx/graph_writer.h"

namespace ortmodule {

std::string export_model(const Graph& graph, const ExportOptions& options) {
  ORTMODULE_CHECK_ARG(options.ir_version >= 8 && options.ir_version <= pb::Version::IR_VERSION,
                      "ir_version must lie in 8 .. ", static_cast<int>(pb::Version::IR_VERSION), ", got ",
                      options.ir_version);
  std::optional<ExternalFileWriter> external;
  if (!options.external_data_file.empty()) external.emplace(options.external_data_dir, options.external_data_file);

  pb::ModelProto model;
  model.set_ir_version(options.ir_version);
  model.set_producer_name("ortmodule");
  GraphWriter writer(options, external ? &*external : nullptr);
  writer.write(graph, model.mutable_graph());
  for (const FunctionBody& function : graph.functions()) writer.write(function, model.add_functions());
  writer.write_opsets(graph.opsets(), writer.domains(), model.mutable_opset_import());
  for (const auto& [key, value] : graph.metadata()) {
    auto* entry = model.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
  ORTMODULE_CHECK(model.ByteSizeLong() <= INT_MAX, kUnsupported, "the model takes ", model.ByteSizeLong(),
                  " bytes, over protobuf's 2 GB; name an external data file");
  std::string bytes;
  ORTMODULE_INTERNAL(model.SerializeToString(&bytes), "the model could not be serialized");
  if (external) external->commit();
  return bytes;
}

}  // namespace ortmodule
