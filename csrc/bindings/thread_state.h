// What torch keeps of a thread: dispatch keys, gradient modes, modes before functions and operators, hooks.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// ThreadState(): as it is now; restore() puts it back, on the same thread.
void register_thread_state(pybind11::module_& m);

}  // namespace ortmodule
