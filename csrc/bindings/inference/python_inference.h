// The runs of ortmodule.sessions.InferenceSession.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// `_C.Inference`, a session's runs with NumPy's arrays and torch's tensors by name; `_C.RunStop`.
void register_inference(pybind11::module_& m);

}  // namespace ortmodule
