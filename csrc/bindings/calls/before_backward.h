// Calls Python before a step's backward runs.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_before_backward(pybind11::module_& m);

}  // namespace ortmodule
