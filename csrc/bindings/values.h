// Values of a run between Python and the engine: tensors, lists of tensors for sequences, None for an absent optional.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "base/dtype.h"

namespace ortmodule {

// `type`: what the graph has there; of a list that is empty it tells the elements' type. Throws kInvalidArgument.
at::Tensor read_value(const pybind11::handle& item, DType type);
pybind11::object write_value(const at::Tensor& value);
pybind11::list write_values(const std::vector<at::Tensor>& values);

}  // namespace ortmodule
