// Whether two Python values are the same to every program.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

// Whether no program can tell the two apart but by identity: numbers, strings, devices, and tuples and frozensets of
// them, by type and bits; everything else by identity. Null is the same as null alone. Runs no Python code.
bool same_value(PyObject* a, PyObject* b);

// Whether a set or frozenset holds these items, met in this order.
bool same_members(PyObject* set, PyObject* items);

}  // namespace ortmodule
