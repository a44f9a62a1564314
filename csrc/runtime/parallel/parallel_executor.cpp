#include "runtime/parallel/parallel_executor.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "device/small_block_scope.h"
#include "kernels/small_tensor.h"
#include "products/matmul_provider.h"
#include "runtime/profiler_range.h"
#include "runtime/run_stop.h"
#include "runtime/run_trace.h"
#include "runtime/thread_limit.h"

namespace ortmodule {
namespace {

using Clock = std::chrono::steady_clock;

// One run, as its workers see it.
class ParallelRun {
 public:
  ParallelRun(const Executor& executor, Frame& frame, const InterOp& with, MatmulProvider matmul,
              ParallelMemory* memory)
      : executor_(executor),
        frame_(frame),
        threads_(with.threads),
        matmul_(matmul),
        memory_(memory ? memory->begin() : nullptr),
        timed_(trace_ || Executor::profiled()),
        readers_left_(executor.plan().parallel->readers.size()) {
    for (size_t slot = 0; slot < readers_left_.size(); ++slot)
      readers_left_[slot].store(executor.plan().parallel->readers[slot], std::memory_order_relaxed);
    if (timed_) seconds_.assign(executor.step_count(), -1);
  }
  ~ParallelRun() {
    if (memory_) memory_->end(ended_);
  }
  ParallelRun(const ParallelRun&) = delete;
  ParallelRun& operator=(const ParallelRun&) = delete;

  void work(TaskSource& source) {
    const at::ThreadLocalStateGuard as_the_caller(state_);
    const SmallBlockScope small_blocks(true);
    ThreadLimit threads(threads_);
    const MatmulScope matmul(matmul_);
    const DeterministicScope deterministic(deterministic_);
    const RunStop::Scope stopped(stop_);
    const RunTrace::Scope traced(trace_, RunTrace::Part::kOfRun);
    const Allowance::Scope limited(allowance_);
    const auto memory = memory_ ? std::make_shared<ParallelMemory::Worker>(memory_) : nullptr;
    CpuAllocationScope allocations(memory.get());
    allocations.pause();
    KernelContext context(frame_.slots.data(), &frame_.symbols);
    while (const std::optional<size_t> step = source.next()) {
      threads.hold();
      if (allowance_) allowance_->check_time();
      const Clock::time_point begin = timed_ ? Clock::now() : Clock::time_point();
      {
        const ProfilerRange range(ranged_, [&]() -> const std::string& { return executor_.range_name(*step); });
        if (memory) memory->set_step(*step);
        allocations.resume();
        executor_.run_step(*step, context);
        allocations.pause();
      }
      if (timed_) note(*step, begin);
      release_after(executor_.plan().steps[*step]);
    }
  }

  // All steps have run.
  void end() {
    ended_ = true;
    if (timed_) executor_.add_times(seconds_, frame_.symbols);
  }

 private:
  void note(size_t step, Clock::time_point begin) {
    const Clock::time_point end = Clock::now();
    seconds_[step] = std::chrono::duration<double>(end - begin).count();
    if (trace_) trace_->add(executor_.plan().steps[step], begin, end);
  }

  // Lets go of what this step was the last to read, in this run, and of what nobody reads.
  void release_after(const Step& step) {
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (is_first(step.inputs, i)) count_down(step.inputs[i]);
    for (int slot : step.outputs)
      if (slot >= 0 && readers_left_[slot].load(std::memory_order_relaxed) == 0) recycle(frame_.slots[slot]);
  }

  static bool is_first(const std::vector<int>& slots, size_t i) {
    for (size_t k = 0; k < i; ++k)
      if (slots[k] == slots[i]) return false;
    return slots[i] >= 0;
  }

  void count_down(int slot) {
    std::atomic<int>& left = readers_left_[slot];
    if (left.load(std::memory_order_relaxed) > 0 && left.fetch_sub(1, std::memory_order_acq_rel) == 1)
      recycle(frame_.slots[slot]);
  }

  const Executor& executor_;
  Frame& frame_;
  const int threads_;
  const MatmulProvider matmul_;
  const bool deterministic_ = deterministic_compute();
  const std::shared_ptr<ParallelMemory::Run> memory_;
  const RunStop* const stop_ = RunStop::current();
  RunTrace* const trace_ = RunTrace::current();
  const std::shared_ptr<Allowance> allowance_ = Allowance::current();
  const at::ThreadLocalState state_;
  const bool ranged_ = at::hasCallbacks();
  const bool timed_;
  std::vector<std::atomic<int>> readers_left_;  // by slot; -1: it stays
  std::vector<double> seconds_;                 // by step
  bool ended_ = false;
};

const ParallelSteps& steps_of(const ExecutionPlan& plan) {
  ORTMODULE_INTERNAL(plan.parallel, "the plan '", plan.name, "' is for one thread");
  return *plan.parallel;
}

}  // namespace

ParallelExecutor::ParallelExecutor(const Executor& executor)
    : executor_(executor), tasks_(steps_of(executor.plan()).before, steps_of(executor.plan()).light) {}

void ParallelExecutor::keep_memory() { memory_ = std::make_shared<ParallelMemory>(executor_.step_count()); }

bool ParallelExecutor::may_run(const InterOp& with) const {
  return with.pool && width() > 1 && with.pool->alive() && !InterOpPool::on_worker();
}

void ParallelExecutor::run(Frame& frame, const InterOp& with, MatmulProvider matmul) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  ParallelRun run(executor_, frame, with, matmul, memory_.get());
  run_tasks(tasks_, *with.pool, RunStop::current(), [&run](TaskSource& source) { run.work(source); });
  run.end();
}

}  // namespace ortmodule
