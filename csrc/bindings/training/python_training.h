// Training sessions and agents, as ortmodule.training has them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// `_C.TrainingSession` and `_C.TrainingAgent`, on the public classes of C++ programs.
void register_training(pybind11::module_& m);

}  // namespace ortmodule
