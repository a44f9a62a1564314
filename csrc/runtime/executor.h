// Runs one plan: kernels in order over a frame of tensors, releasing each value after its last use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel_context.h"
#include "ortmodule/export.h"
#include "plan/execution_plan.h"
#include "records/kernel_registry.h"
#include "runtime/bound_results.h"
#include "runtime/run_streams.h"
#include "runtime/step_cost.h"
#include "runtime/step_memory.h"

namespace ortmodule {

// The values of one run, by slot, and the sizes bound from its inputs.
struct Frame {
  std::vector<at::Tensor> slots;
  SymbolTable symbols;
  std::shared_ptr<StepMemory::Lease> memory;  // null: torch's allocator serves
  std::shared_ptr<BoundResults> bound;        // null: the caller has bound no buffer that a result could lie in
  std::shared_ptr<RunStreams> streams;        // of a plan with several, from its first step to its last
};

// Called after each step while a run is observed (dumps, profiles); never on the fast path.
using StepObserver = std::function<void(const Step& step, const Frame& frame)>;

// Receives output `index` of the plan as soon as nothing later in the plan reads it, and may take it.
using OutputSink = std::function<void(size_t index, at::Tensor&& value)>;

// What a step took, summed over the runs since it was last asked. Where kernels are queued (a GPU) it is the time to
// queue them.
struct StepTime {
  const Step* step;
  int64_t calls;
  double seconds;
  StepCost cost;  // of all calls; not known where that of one is not
};

class Executor {
 public:
  // While the count of those who asked is above zero, every executor of the process times its steps.
  ORTMODULE_API static void profile(bool on);
  static bool profiled();

  // Finds every kernel; throws kUnsupported naming the node that has none. The plan's graph must outlive it.
  Executor(ExecutionPlan plan, c10::Device device);

  // Puts the plan's constants into the frame.
  void load_constants(Frame& frame) const;
  // Runs steps [begin, end). With a sink, outputs leave the frame early; without one they stay in their slots.
  void run(Frame& frame, const OutputSink* sink = nullptr, const StepObserver* observer = nullptr, size_t begin = 0,
           size_t end = SIZE_MAX) const;

  // Runs one step's kernel, for an executor that orders and releases itself; errors name the node.
  void run_step(size_t step, KernelContext& context) const;
  // What a step's range in torch's profiler is called: all are made at the first call.
  const std::string& range_name(size_t step) const;
  // What steps from `begin` on took in one run; negative: it did not run.
  void add_times(const std::vector<double>& seconds, const SymbolTable& sizes, size_t begin = 0) const;

  size_t step_count() const { return steps_.size(); }
  // Whether a step's kernel writes a result over an operand that nobody else needs.
  bool may_overwrite(size_t step) const { return may_overwrite_[step]; }
  // Per output of the plan: how many steps must have run before a sink has received it.
  const std::vector<size_t>& ready_after() const { return ready_after_; }

  const ExecutionPlan& plan() const { return plan_; }
  // The steps that ran while profiled; forgets them.
  std::vector<StepTime> take_times() const;
  // A step's mean over those runs, while they are not taken; negative: none.
  double mean_seconds(size_t step) const;
  // What the symbols were in the last of them; kept when times are taken.
  SymbolTable profiled_sizes() const;

 private:
  // An output of the plan; `again`: a later one is the same value.
  struct Emit {
    size_t index;
    bool again;
  };
  // What a run reads of a step. Lists lie one after another in `slots_`, `flags_` and `emits_`, in the order in which
  // a run reads them.
  struct Prepared {
    Kernel kernel;
    KernelContext::StepView view;
    const Step* step;
    std::span<const int> release;
    std::span<const Emit> emits;  // what is final after this step
  };
  struct Times {
    int64_t calls = 0;
    double seconds = 0;
    StepCost cost{0, 0};
  };
  void gather_lists(const std::vector<std::vector<Emit>>& emits);
  void run_step(const Prepared& prepared, KernelContext& context) const;
  Kernel on_stream(Kernel kernel, const Step& step) const;

  ExecutionPlan plan_;
  c10::Device device_;
  std::optional<StreamTable> streams_;  // of a graph whose nodes are placed
  std::vector<Prepared> steps_;
  std::vector<char> may_overwrite_;
  std::vector<char> keeps_nothing_;  // per step: its kernel keeps nothing that it allocates
  std::vector<int> slots_;
  std::vector<char> flags_;
  std::vector<Emit> emits_;
  std::vector<Emit> emit_at_end_;
  std::vector<size_t> ready_after_;
  std::vector<std::pair<int, at::Tensor>> constants_;
  mutable std::once_flag named_;
  mutable std::vector<std::string> range_names_;  // by step
  mutable std::mutex times_mutex_;
  mutable std::vector<Times> times_;     // by step
  mutable SymbolTable costed_;           // the sizes of the next
  mutable std::vector<StepCost> costs_;  // by step
};

}  // namespace ortmodule
