// What a trace's stand-ins are like, and more of the same kind: by their fields, without any arithmetic.
//
// torch makes a stand-in of symbolic sizes as it makes any tensor: whether it is contiguous, how many bytes it takes
// and much else is computed in sympy, a millisecond each. Another one of the same sizes has all of that from the first.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_stand_ins(pybind11::module_& m);

}  // namespace ortmodule
