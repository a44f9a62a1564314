// Passes written in Python as passes of the engine.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "transforms/pass_registry.h"

namespace ortmodule {

// From a list of (name, stage, function); a stage is "forward", "joint" or "both".
std::vector<PassInfo> python_passes(const pybind11::list& passes);

void register_passes(pybind11::module_& m);

}  // namespace ortmodule
