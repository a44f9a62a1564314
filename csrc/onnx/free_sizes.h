// Numbers for sizes that a model leaves free.
#pragma once

#include "onnx/import.h"
#include "onnx/proto.h"

namespace ortmodule {

// In the types of the graph's inputs, outputs and values. Throws kInvalidArgument for a size that the model does not
// have.
void set_free_sizes(pb::ModelProto& model, const ImportOptions& options);

}  // namespace ortmodule
