// Tasks that wait for one another, and threads that run them: each task begins when those before it have ended.
//
// Knows no torch and no kernel, so that ThreadSanitizer sees all of it. A run counts down, for each task, those that
// have not ended; what is ready waits in one list per run, from which as many of the pool's threads help themselves as
// there is work for. A thread goes on with what its last task has made ready, whose operands its caches hold; else
// with the first in order. Light tasks are run by whoever made them ready: nobody is woken for them.
// The caller sleeps meanwhile, so that however many call, no more threads compute than the pool has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/inter_op_pool.h"
#include "runtime/run_stop.h"

namespace ortmodule {

class TaskGraph {
 public:
  // Per task, the tasks that it waits for, by smaller numbers than its own, none of them twice; and whether it is
  // light.
  TaskGraph(const std::vector<std::vector<uint32_t>>& before, std::vector<char> light);

  size_t size() const { return light_.size(); }
  // How many tasks that are not light may run at once, at most, as far as levels tell.
  size_t width() const { return width_; }

 private:
  friend class TaskRun;
  std::vector<uint32_t> waits_;                // per task: how many it waits for
  std::vector<std::vector<uint32_t>> behind_;  // per task: those that wait for it
  std::vector<char> light_;
  size_t width_ = 0;
};

class TaskRun;

// What a helper takes tasks from.
class TaskSource {
 public:
  // The next task; the one before has ended then. None: there is nothing left for this helper.
  std::optional<size_t> next();

 private:
  friend class TaskRun;
  explicit TaskSource(TaskRun& run) : run_(run) {}
  TaskRun& run_;
  std::optional<uint32_t> current_;
  std::optional<uint32_t> kept_;  // its next one that is not light
};

// Runs every task of a graph once on threads of the pool: each calls `work`, which runs what the source gives it until
// that is nothing. Ends when all tasks have; or, where `work` throws or `stop` is asked for, when those that had begun
// have, and throws the first error. Not to be called on a thread of a pool.
void run_tasks(const TaskGraph& graph, InterOpPool& pool, const RunStop* stop,
               const std::function<void(TaskSource&)>& work);

}  // namespace ortmodule
