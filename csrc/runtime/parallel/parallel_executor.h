// Runs one plan of the host on several threads: the second executor. Which steps wait for which, and what they may
// overwrite, the plan says (Note [Happens before] in plan/parallel_steps.h); which thread runs a step, the scheduler
// (task_graph.h); the kernels and their errors are the sequential executor's.
#pragma once

#include <cstddef>
#include <memory>

#include "base/inter_op_pool.h"
#include "products/choice.h"
#include "runtime/executor.h"
#include "runtime/parallel/parallel_memory.h"
#include "runtime/parallel/task_graph.h"

namespace ortmodule {

// What a session runs its nodes with.
struct InterOp {
  std::shared_ptr<InterOpPool> pool;
  int threads = 1;  // of one operator
};

class ParallelExecutor {
 public:
  // The executor, whose plan has ParallelSteps, must outlive it.
  explicit ParallelExecutor(const Executor& executor);

  // How many steps can run at once, those that are over in a moment aside.
  size_t width() const { return tasks_.width(); }
  // Whether it pays to run so, here and now: several steps can run at once, and the caller is no thread of a pool.
  bool may_run(const InterOp& with) const;

  // Pages of large values stay from run to run from now on.
  void keep_memory();

  // Runs all steps; outputs stay in their slots. Workers compute as the caller would: with its modes, its RunStop and
  // its RunTrace. Throws the first error of a step.
  void run(Frame& frame, const InterOp& with, MatmulProvider matmul) const;

 private:
  const Executor& executor_;
  const TaskGraph tasks_;
  std::shared_ptr<ParallelMemory> memory_;  // null: torch's allocator serves
};

}  // namespace ortmodule
