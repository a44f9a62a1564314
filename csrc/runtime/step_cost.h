// What a node moves and computes, from its types and the sizes of a call.
#pragma once

#include "base/dim.h"

namespace ortmodule {

class Node;

// Negative: not known before the run.
struct StepCost {
  // Of its inputs, each once and whole, and its outputs; not known of a view, which moves nothing unless it must copy.
  double bytes = -1;
  double flops = -1;  // multiplications and additions
};

StepCost cost_of(const Node& node, const SymbolTable& sizes);

}  // namespace ortmodule
