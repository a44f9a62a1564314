// Another node that gives a value of forward a second time, in backward: what `OpRecord::recompute` is given.
//
// An operator without one is recomputed as it is, unless it draws random numbers or has a side effect.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "records/registry.h"

namespace ortmodule {

// Gives output 0 of a forward node again, from its inputs and its small saved outputs: how batch statistics are not
// taken twice and dropout masks not drawn again.
struct RecomputeForm {
  std::string domain, op;
  std::vector<NodeArg*> inputs;
  Attributes attributes;
};

// Product of a shape's dims.
double count_elements(const Shape& shape, const SizeOf& size);

}  // namespace ortmodule
