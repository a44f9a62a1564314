// Writes a Graph as an ONNX model.
//
// The graph must be resolved (nodes in order, types known). What is written passes onnx.checker: names are unique,
// every domain is imported, every value has its type. Operators that no standard has stay in their domains. Not here:
// making a graph portable; transforms/lower_portable.h does that before.
#pragma once

#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace ortmodule {

struct ExportOptions {
  int64_t ir_version = 11;
  // Refuse (kUnsupported, naming the node) a graph with nodes that only this project can run.
  bool portable = false;
  // When a file is named, tensors of at least `external_threshold` bytes go there; the model names the file alone, so
  // it must be saved in `external_data_dir` as well. Needed for models over 2 GB.
  std::string external_data_dir{};
  std::string external_data_file{};
  uint64_t external_threshold = 1024;
};

// The serialized ModelProto. Throws Error: kInvalidArgument (options), kUnsupported (over 2 GB without external data,
// or not portable), kRuntime (the external file cannot be written).
std::string export_model(const Graph& graph, const ExportOptions& options = {});

}  // namespace ortmodule
