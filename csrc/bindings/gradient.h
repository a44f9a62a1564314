// Gradient formulas written in Python: `_C.register_gradient` and the context that such a formula gets.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_gradient_formulas(pybind11::module_& m);

}  // namespace ortmodule
