#include "runtime/value_cache.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "records/registry.h"

namespace ortmodule {
namespace {

// Whether a step makes the same of the same operands, wherever and how often it runs.
bool is_repeatable(const Step& step) {
  const OpRecord* record = step.node->record();
  if (!record || step.node->domain() == kAtenDomain) return false;
  for (const Trait never : {kRandom, kSideEffect, kCollective, kTransfer, kTakesContainers, kCustom})
    if (record->has(never)) return false;
  const auto& attributes = step.node->attributes();
  return std::none_of(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

}  // namespace

CachedSteps::CachedSteps(const ExecutionPlan& plan, const std::vector<int>& inputs, const std::vector<int>& needed) {
  if (plan.placed) return;  // steps of several streams wait for one another
  std::unordered_set<int> known(inputs.begin(), inputs.end());
  for (const auto& [slot, constant] : plan.constants) known.insert(slot);
  std::unordered_map<int, std::string> made;
  std::vector<char> cached;
  for (const Step& step : plan.steps) {
    cached.push_back(is_repeatable(step) && std::all_of(step.inputs.begin(), step.inputs.end(),
                                                        [&](int slot) { return slot < 0 || known.count(slot); }));
    for (size_t i = 0; cached.back() && i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      known.insert(step.outputs[i]);
      made[step.outputs[i]] = step.node->output(i)->name();
    }
  }
  const auto want = [&](int slot) {
    if (const auto found = made.find(slot); found != made.end()) values_.insert(*found);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (cached[i]) continue;
    for (int slot : plan.steps[i].inputs) want(slot);
    if (ranges_.empty() || ranges_.back().second != i) ranges_.emplace_back(i, i);
    ranges_.back().second = i + 1;
  }
  for (int slot : needed) want(slot);
}

bool CachedSteps::fill(Frame& frame, const ValueCache& cache) const {
  if (empty()) return false;
  for (const auto& [slot, name] : values_)
    if (!cache.count(name)) return false;
  for (const auto& [slot, name] : values_) frame.slots[slot] = cache.at(name);
  return true;
}

void CachedSteps::run_rest(const Executor& executor, Frame& frame, const StepObserver* observer) const {
  for (const auto& [begin, end] : ranges_) executor.run(frame, nullptr, observer, begin, end);
}

void CachedSteps::keep(const Step& step, const Frame& frame, ValueCache& cache) const {
  for (int slot : step.outputs)
    if (const auto found = values_.find(slot); found != values_.end() && frame.slots[slot].defined())
      cache[found->second] = frame.slots[slot].clone();
}

}  // namespace ortmodule
