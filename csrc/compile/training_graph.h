// A training graph as a file: forward and gradients in standard ONNX operators, for any ONNX runtime.
//
// The same stages as compile(), up to the gradient; then every operator of ours is replaced by its body. What only our
// engine has (fusion, plans, kernels) comes after that and is not in the file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

struct TrainingGraphRequest {
  std::vector<std::string> xs;       // graph inputs whose gradients become outputs `<x>_grad`
  std::vector<std::string> losses;   // scalar graph outputs whose gradient is 1
  std::vector<std::string> outputs;  // graph outputs whose gradient is a new graph input `<output>_grad`
};

// The serialized ModelProto. Its inputs are the model's, then the gradients of `outputs`; its outputs are the model's,
// then one `<x>_grad` per x: zeros where nothing depends on x. Throws kUnsupported naming an operator that has no form
// in standard operators, kInvalidArgument for an unknown name or a type without a gradient.
ORTMODULE_API std::string training_graph(std::string_view model, const TrainingGraphRequest& request);

}  // namespace ortmodule
