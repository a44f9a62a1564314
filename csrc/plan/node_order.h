// In which order the nodes of a plan run.
//
// Any order in which a node follows what it reads gives the same numbers. Nodes that draw random numbers, have a side
// effect or stand for torch's own code with both keep their order among themselves in each.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

enum class ExecutionOrder {
  kDefault,   // the graph's, which capture and the gradient builder keep equal to eager's
  kPriority,  // sizes and other host values as soon as they can be had, else the graph's
  kMemory,    // greedily what frees most and makes least; the graph's where that holds less at its peak
};

// Whether a node draws random numbers, has a side effect or is no operator that is known, itself or in a subgraph: all
// such nodes of a graph keep their order among themselves.
bool keeps_its_order(const Node& node);

// "default", "priority_based", "memory_efficient"; kInvalidArgument for another name.
ORTMODULE_API ExecutionOrder parse_order(const std::string& name);

// What an order may ask beside the nodes.
struct OrderFacts {
  std::vector<double> bytes{};  // by value id: what a value holds, 0 for views, constants and what the caller gives
  std::vector<char> stays{};    // by value id: it is not let go of (outputs, what is kept for backward)
};

// `nodes` in another order; they must be in an order that runs. n log n in nodes and uses.
std::vector<const Node*> in_order(std::vector<const Node*> nodes, ExecutionOrder order, const OrderFacts& facts);

// The most bytes that are alive after a node, in this order.
double peak_of(const std::vector<const Node*>& nodes, const OrderFacts& facts);

}  // namespace ortmodule
