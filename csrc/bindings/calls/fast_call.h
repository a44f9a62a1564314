// The steady state of an ORTModule: checks that a call is like the one a session was made for, and runs it.
//
// Everything that could make the session wrong is compared on every call, natively: structure and values of the
// arguments, types, sizes, devices and requires_grad of tensors, the identity and requires_grad of the module's
// tensors, its training flags and plain attributes, grad mode and autocast. Any difference is a miss, and the
// GraphTransitionManager decides, in Python, what to do. A hit costs a few microseconds.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_fast_call(pybind11::module_& m);

}  // namespace ortmodule
