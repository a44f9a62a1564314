// Whether objects have attributes of their own, told without making a dict of them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// A look at `__dict__` would make one of each object, which a step over hundreds of parameters would have to read.
bool has_no_attributes(PyObject* object);
bool have_no_attributes(PyObject* const* objects, size_t count);

}  // namespace ortmodule
