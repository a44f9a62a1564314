// What Python sees of a graph's values and nodes, in gradient formulas and in passes: attributes and types.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "graph/graph.h"

namespace ortmodule {

// Integers, floats, texts, lists of these and tensors; kInvalidArgument for anything else.
Attributes attributes_from(const pybind11::kwargs& values);
// A tensor attribute is a torch tensor, a graph None.
pybind11::dict attributes_to(const Attributes& attributes);
// A tuple of integers and, where a size is symbolic, texts; None for an unknown rank.
pybind11::object shape_to(const TypeInfo& type);
// Whether a value of one type can stand for one of the other, as far as both are known.
bool may_replace(const TypeInfo& given, const TypeInfo& wanted);

}  // namespace ortmodule
