#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_session(pybind11::module_& m);

}  // namespace ortmodule
