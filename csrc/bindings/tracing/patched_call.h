// What a capture puts in a function's place: most calls go to what was there, without running any Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_patched_call(pybind11::module_& m);

}  // namespace ortmodule
