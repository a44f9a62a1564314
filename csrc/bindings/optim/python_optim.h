// Steps of optimizers and norms of gradients, as ortmodule.optim calls them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// `_C.update_parameters`, `_C.gradient_norm`, `_C.scale_gradients`.
void register_optim(pybind11::module_& m);

}  // namespace ortmodule
