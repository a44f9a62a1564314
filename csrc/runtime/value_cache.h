// Values of a forward that depend on some of its inputs alone, kept from one run for the next: what is made of weights
// (casts, transposes, packed forms) is the same for every batch between two updates.
//
// The cache is its owner's, who empties it when those inputs have changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/execution_plan.h"
#include "runtime/executor.h"

namespace ortmodule {

// By the values' names in the graph.
using ValueCache = std::map<std::string, at::Tensor>;

class CachedSteps {
 public:
  CachedSteps() = default;
  // `inputs`: slots of the inputs that stay the same. `needed`: slots that must be there when the steps have run, in
  // addition to those that later steps read.
  CachedSteps(const ExecutionPlan& plan, const std::vector<int>& inputs, const std::vector<int>& needed);

  bool empty() const { return values_.empty(); }
  // Puts the cached values into a frame; false, and nothing is done, where one is missing.
  bool fill(Frame& frame, const ValueCache& cache) const;
  // Runs all other steps.
  void run_rest(const Executor& executor, Frame& frame, const StepObserver* observer) const;
  // After a step of a whole run: copies of what it has made for the cache.
  void keep(const Step& step, const Frame& frame, ValueCache& cache) const;

 private:
  std::map<int, std::string> values_;              // slot, name
  std::vector<std::pair<size_t, size_t>> ranges_;  // of the other steps
};

struct CachedRun {
  const CachedSteps& steps;
  ValueCache& cache;
};

}  // namespace ortmodule
