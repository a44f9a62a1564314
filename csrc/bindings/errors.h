// C++ errors as the matching Python types of ortmodule.errors.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_errors(pybind11::module_& m);

}  // namespace ortmodule
