// Tells which Python functions run on a thread and which C functions they call, on Python 3.11.
//
// CPython's profile hook, in C: a capture makes millions of calls inside of torch, of which a few thousand are
// followed. A profiler that is active is called before, and is active afterwards. From 3.12 on sys.monitoring does
// this, in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_call_monitor(pybind11::module_& m);

}  // namespace ortmodule
