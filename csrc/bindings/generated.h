// Sources of generated kernels, for tools and tests.
#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule {

void register_generated(pybind11::module_& m);

}  // namespace ortmodule
