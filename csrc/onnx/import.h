// Reads an ONNX model into a Graph. No protobuf type appears here, so that any layer may include this header.
//
// Not here: operators. A node of an unknown operator is imported; resolve() refuses it. Import checks the format:
// versions, names, types of inputs, sizes of tensors, paths of external data.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/limits.h"
#include "graph/graph.h"
#include "graph/subgraph.h"
#include "onnx/model_info.h"

namespace ortmodule {

struct ImportOptions {
  // The folder that external tensor data lies in; when empty, a model with external data is refused.
  // Locations are relative to it and may leave it by no means: '..', absolute paths, symbolic links and files with
  // several hard links are refused.
  std::string external_data_dir{};
  // Not empty: links are followed to files that lie in this folder.
  std::string external_data_root{};
  // Whether it may have nodes that call any operator of PyTorch by its name; some read files.
  bool aten_operators = true;
  // Of its tensors, nodes and nesting. A model that declares more is refused before memory is taken.
  Limits limits{};
  // Free sizes that get a number, by name and by denotation. One that the model does not have is kInvalidArgument.
  std::map<std::string, int64_t> sizes{}, sizes_by_denotation{};
  // Tensors that stand for the model's initializers; of the same type and shape, or kInvalidArgument.
  std::map<std::string, TensorData> initializers{};
  // Inputs that have a value in the model and are inputs like the others nevertheless; kInvalidArgument for others.
  std::set<std::string> fed{};
  // Operators that leave it open do what they do in training (transforms/training_mode.h).
  bool training_mode = false;
  // Where large tensors of the model's own bytes are put aside (onnx/set_aside.h); empty: they stay in memory.
  std::string weights_folder{};
};

// The versions of ai.onnx that can be read; which of them an operator works at is the operator's matter.
constexpr int64_t kOldestOpset = 1;
constexpr int64_t kNewestOpset = 28;

// Node metadata in files: "backward" for the nodes of that phase.
constexpr const char* kPhaseKey = "ortmodule.phase";
constexpr const char* kProviderKey = "ortmodule.provider";  // for people: a graph that is read is placed anew

// `data` holds a serialized ModelProto. An input that is an initializer as well becomes an initializer.
// Throws Error: kParse (no model; names the byte offset), kInvalidGraph (breaks a rule of ONNX; names node or value),
// kUnsupported (maps, sparse and string tensors, other versions), kInvalidArgument (external data path), LimitError.
// `info`, where it is given, receives what the model says of itself.
std::unique_ptr<Graph> import_model(const void* data, size_t size, const ImportOptions& options = {},
                                    ModelInfo* info = nullptr);

}  // namespace ortmodule
