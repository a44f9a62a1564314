// TensorProto -> TensorData: typed fields, raw bytes and external files, every size checked before memory is taken.
#pragma once

#include <map>
#include <string>

#include "base/dim.h"
#include "graph/attribute.h"
#include "onnx/external_file.h"
#include "onnx/import.h"
#include "onnx/proto.h"
#include "onnx/set_aside.h"

namespace ortmodule {

class TensorReader {
 public:
  explicit TensorReader(const ImportOptions& options)
      : options_(options),
        files_(options.external_data_dir, options.external_data_root),
        aside_(options.weights_folder),
        given_(options.initializers),
        bytes_left_(options.limits.tensor_bytes),
        limit_(options.limits.tensor_bytes) {}

  // Those of the import; they outlive the reader.
  const ImportOptions& options() const { return options_; }

  // Takes raw bytes out of `tensor` instead of copying them. `owner` names the tensor in errors.
  TensorData read(pb::TensorProto& tensor, const std::string& owner);
  // The same for an initializer of the model's own graph, for which the caller may have given another tensor.
  TensorData read_initializer(pb::TensorProto& tensor, const std::string& owner);
  // Throws kInvalidArgument where the caller has given a tensor for what is no initializer.
  void check_all_taken() const;

 private:
  // Bytes of the tensor in the file.
  uint64_t checked_size(const pb::TensorProto& tensor, DType dtype, const std::string& owner);
  // Where they stay.
  SharedBytes settled(std::string bytes);
  SharedBytes external(const pb::TensorProto& tensor, uint64_t size, const std::string& owner);

  const ImportOptions& options_;
  ExternalFiles files_;
  SetAside aside_;
  std::map<std::string, TensorData> given_;  // those that were not taken yet
  uint64_t bytes_left_, limit_;
};

}  // namespace ortmodule
