// The plan of one half of a step: plan > stream > step, and what each step releases.
//
// A plan is data: slots, steps and lifetimes. It knows no torch; kernels are found when a session is built from it.
// Steps stand in the one order in which they are issued, and each belongs to a stream: what a stream runs are its steps
// in that order.
// Forward and backward plans of one training graph share one slot numbering (SlotTable), so that a value saved for
// backward is simply a slot that forward does not release.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "plan/node_order.h"
#include "plan/parallel_steps.h"

namespace ortmodule {

// Value -> slot of the run's frame. Slots are given by name, so that a second backward plan, built on a copy of the
// graph, finds the values that forward saved.
class SlotTable {
 public:
  int slot(const NodeArg& value);
  int find(const std::string& name) const;  // -1 when there is none
  size_t size() const { return by_name_.size(); }

 private:
  std::unordered_map<std::string, int> by_name_;
};

// A stream waits for a notification; where it is the host's, the host does.
struct Wait {
  int notification;
  size_t stream;
};

struct Step {
  enum class Kind {
    kLaunchKernel,
    kTransfer,              // a copy between places
    kBarrier,               // the host waits for a notification
    kWaitOnEP,              // a stream does, or a kernel for what it had started
    kActivateNotification,  // a stream tells that it has come here
    kTriggerDownstream,     // the host's result is another stream's operand: the order of issue is enough
  } kind = Kind::kLaunchKernel;
  const Node* node = nullptr;
  size_t stream = 0;
  std::vector<Wait> waits;           // before it; the last three kinds are what text() makes of these
  int notifies = -1;                 // after it
  bool waits_itself = false;         // the kernel does, or finds that it need not
  bool triggers = false;             // after it
  std::vector<int> inputs, outputs;  // slots, -1 for an absent optional one
  std::vector<int> foreign;          // slots of inputs whose memory belongs to another stream of devices
  std::vector<int> held;             // slots of inputs that must not change or go before the run has ended
  std::vector<char> last_use;        // per input: the slot is dead after this step
  std::vector<int> release;          // slots to clear after the step
};

// What runs in order: the host, a queue of a device, or what carries collectives.
struct LogicStream {
  std::string device;  // "cpu", "cuda:1"; "communication"
  enum class Role { kCompute, kTransfer, kCommunication } role = Role::kCompute;
};

const char* kind_name(Step::Kind kind);  // "LaunchKernel", "Transfer", "WaitOnEP", ...

struct ExecutionPlan {
  std::string name;  // "forward", "backward"
  std::vector<LogicStream> streams;
  std::vector<Step> steps;        // in the order in which they are issued
  std::vector<int> output_slots;  // -1 where an output is absent
  std::vector<std::string> output_names;
  std::vector<std::pair<int, const NodeArg*>> constants;  // slots to fill once
  int notifications = 0;                                  // that have numbers
  std::vector<std::pair<int, size_t>> begins;             // those that streams give before the first step
  std::vector<Wait> ends;                                 // behind the last step
  std::unordered_set<std::string> late;                   // outputs that nobody may have before these waits
  std::unordered_set<std::string> settled;                // of what leaves: the host has waited for it
  // Whether steps are queued on streams of devices: the graph was placed (placement/).
  bool placed = false;
  std::optional<ParallelSteps> parallel;  // of a plan that may run on several threads
  // `note`: what to add to a step's line.
  std::string text(const std::function<std::string(const Step&)>& note = {}) const;
};

struct PlanRequest {
  std::string name;
  Phase phase = Phase::kForward;
  std::vector<NodeArg*> outputs;  // null entries allowed
  std::vector<char> keep;         // by value id: must survive this plan (saved for backward); may be empty
  std::string device_type = "cpu";
  ExecutionOrder order = ExecutionOrder::kDefault;
  std::unordered_set<std::string> settled{};  // values that are made when the plan begins
  bool reuse = true;      // memory of a value that nobody reads any more serves others of the same run
  bool parallel = false;  // steps may run on several threads; not where the graph is placed
  SymbolTable sizes{};    // of a call, for the bytes that an order asks for; 64 where a symbol is missing
};

// Bytes of a value with these sizes: 0 for a view, a constant, a host value, and what no node makes.
double planned_bytes(const NodeArg& value, const SymbolTable& sizes);

// The nodes that an output needs (and those with a side effect), in the order that was asked for. Near linear.
ExecutionPlan make_plan(const Graph& graph, const PlanRequest& request, SlotTable& slots);

// Values of the forward phase (graph inputs included, constants not) that backward nodes or `dxs` read.
std::vector<NodeArg*> saved_for_backward(const Graph& graph, const std::vector<NodeArg*>& dxs);

}  // namespace ortmodule
