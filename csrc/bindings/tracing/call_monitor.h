// Tells which Python functions run on a thread and which C functions they call.
//
// CPython's profile hook, in C: a capture makes millions of calls inside of torch, of which a few thousand are
// followed. A profiler that is active is called before, and is active afterwards.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_call_monitor(pybind11::module_& m);

}  // namespace ortmodule
