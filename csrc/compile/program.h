// From a finished graph to what the agent runs: slots, the two plans, and what forward leaves for backward.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "compile/stages.h"
#include "plan/execution_plan.h"
#include "runtime/training_agent.h"

namespace ortmodule {

struct PlanTarget {
  c10::Device device = c10::kCPU;
  ExecutionOrder order = ExecutionOrder::kDefault;
  SymbolTable sizes{};    // of the call that is compiled for
  bool reuse = true;      // PlanRequest
  bool parallel = false;  // PlanRequest, of a forward alone
  // How a plan whose nodes have no places has the device's name.
  std::string type() const { return c10::DeviceTypeName(device.type(), true); }
};

// A training graph, or a forward alone, where `roots` has no outputs.
struct Halves {
  size_t forward_outputs = 0;
  Roots roots;
  GradientResult gradient;
  SeparateBackwards separate;
};

// What a backward for some of the outputs has to do with: where forward's values are, and which it keeps (names).
struct KeptValues {
  SlotTable slots;
  std::unordered_set<std::string> names;
  std::unordered_set<std::string> settled{};  // of these, what the host has waited for (ExecutionPlan)
};

// Plans both halves of `graph` into `program`, whose binding and provider are the caller's.
KeptValues plan_halves(std::shared_ptr<Graph> graph, const Halves& halves, const PlanTarget& target,
                       TrainingProgram& program);

// A forward of a finished graph without a gradient, for the outputs of `mask` alone; binding and provider are the
// caller's.
TrainingProgram plan_forward(std::shared_ptr<const Graph> graph, const OutputSet& mask, const PlanTarget& target);

// A backward over values that stand in `slots`; `dys[k]`: the gradient of output k, null where there is none.
std::shared_ptr<BackwardProgram> plan_backward(std::shared_ptr<const Graph> graph, const std::vector<NodeArg*>& dys,
                                               const std::vector<NodeArg*>& dxs, const KeptValues& kept,
                                               const PlanTarget& target);

}  // namespace ortmodule
