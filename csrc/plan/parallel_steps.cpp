#include "plan/parallel_steps.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_set>

#include "base/status.h"
#include "graph/subgraph.h"
#include "graph/value_bytes.h"
#include "plan/execution_plan.h"
#include "plan/node_order.h"
#include "records/registry.h"
#include "records/shared_operands.h"

namespace ortmodule {
namespace {

// A thread is woken in some ten microseconds: what moves and computes less than this is done by then.
constexpr double kLightBytes = 32 << 10, kLightOperations = 1e5;
// In the place of a free size: rather a thread that is woken for little than a branch that waits.
constexpr int64_t kUnknownSize = 1024;
// Steps that are looked at before a search is given up.
constexpr size_t kLongSearch = 1024;

double size_of(const Dim& dim, const SymbolTable& sizes) {
  SymbolTable known = sizes;
  std::vector<std::string> names;
  dim.collect_symbols(names);
  for (const std::string& name : names) known.emplace(name, kUnknownSize);
  return static_cast<double>(dim.evaluate(known));
}

// Whether a node with known ranks moves and computes little.
bool is_small(const Node& node, const SymbolTable& sizes) {
  double bytes = 0;
  for (const auto* values : {&node.inputs(), &node.outputs()})
    for (const NodeArg* value : *values) {
      if (!value) continue;
      if (!value->type().shape) return false;
      bytes += estimated_bytes(value->type(), sizes, kUnknownSize);
    }
  const FlopsFn count = node.record()->flops_fn();
  return bytes <= kLightBytes &&
         (!count || count(node, [&](const Dim& dim) { return size_of(dim, sizes); }) <= kLightOperations);
}

bool is_light(const Node& node, const SymbolTable& sizes) {
  const OpRecord& record = *node.record();
  if (has_body(node) || record.has(kCustom) || record.has(kTakesContainers)) return false;
  if (record.has(kView) || record.has(kShapeOnly) || record.has(kHostOutput)) return true;
  try {
    return is_small(node, sizes);
  } catch (const Error&) {  // a size that the made-up numbers make impossible
    return false;
  }
}

int slots_of(const ExecutionPlan& plan) {
  int most = -1;
  for (const Step& step : plan.steps)
    for (const auto* slots : {&step.inputs, &step.outputs})
      for (int slot : *slots) most = std::max(most, slot);
  return most + 1;
}

std::vector<std::vector<uint32_t>> steps_before(const ExecutionPlan& plan, size_t slots) {
  std::vector<int64_t> maker(slots, -1);
  std::vector<std::vector<uint32_t>> before(plan.steps.size());
  int64_t ordered = -1;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    std::set<int64_t> known;
    for (int slot : step.inputs)
      if (slot >= 0) known.insert(maker[static_cast<size_t>(slot)]);
    if (keeps_its_order(*step.node)) {
      known.insert(ordered);
      ordered = static_cast<int64_t>(i);
    }
    known.erase(-1);
    before[i].assign(known.begin(), known.end());
    for (int slot : step.outputs)
      if (slot >= 0) maker[static_cast<size_t>(slot)] = static_cast<int64_t>(i);
  }
  return before;
}

// Slots by the memory that they may share.
class Sharing {
 public:
  Sharing(const ExecutionPlan& plan, size_t slots) : parent_(slots) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
    for (const Step& step : plan.steps) {
      const std::vector<NodeArg*> operands = shared_operands(*step.node);
      for (size_t k = 0; k < step.inputs.size(); ++k) {
        if (step.inputs[k] < 0 || std::find(operands.begin(), operands.end(), step.node->input(k)) == operands.end())
          continue;
        for (int out : step.outputs)
          if (out >= 0) parent_[root(step.inputs[k])] = root(out);
      }
    }
    users_.resize(slots);
    for (size_t i = 0; i < plan.steps.size(); ++i)
      for (int slot : plan.steps[i].inputs) {
        if (slot < 0) continue;
        std::vector<uint32_t>& users = users_[root(slot)];
        if (users.empty() || users.back() != i) users.push_back(static_cast<uint32_t>(i));
      }
  }

  // The steps that read what may lie where this slot's value does, in the order of issue.
  const std::vector<uint32_t>& readers(int slot) { return users_[root(slot)]; }

 private:
  size_t root(int slot) {
    auto at = static_cast<size_t>(slot);
    while (parent_[at] != at) at = parent_[at] = parent_[parent_[at]];
    return at;
  }

  std::vector<size_t> parent_;
  std::vector<std::vector<uint32_t>> users_;  // by root
};

// Whether each of `others` happens before `step`; both are places in the order of issue.
bool all_before(const std::vector<std::vector<uint32_t>>& before, const std::vector<uint32_t>& others, uint32_t step) {
  std::unordered_set<uint32_t> missing;
  uint32_t first = step;
  for (uint32_t other : others) {
    if (other == step) continue;
    if (other > step) return false;
    missing.insert(other);
    first = std::min(first, other);
  }
  std::vector<uint32_t> reached{step};
  std::unordered_set<uint32_t> seen;
  while (!missing.empty() && !reached.empty() && seen.size() < kLongSearch) {
    const uint32_t next = reached.back();
    reached.pop_back();
    for (uint32_t earlier : before[next])
      if (earlier >= first && seen.insert(earlier).second) {
        missing.erase(earlier);
        reached.push_back(earlier);
      }
  }
  return missing.empty();
}

}  // namespace

ParallelSteps parallel_steps(ExecutionPlan& plan, const PlanRequest& request) {
  const auto slots = static_cast<size_t>(slots_of(plan));
  ParallelSteps out{steps_before(plan, slots), {}, std::vector<int>(slots, -1)};
  Sharing sharing(plan, slots);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    out.light.push_back(is_light(*step.node, request.sizes));
    for (size_t k = 0; k < step.inputs.size(); ++k)
      if (step.last_use[k])
        step.last_use[k] = all_before(out.before, sharing.readers(step.inputs[k]), static_cast<uint32_t>(i));
    for (int slot : step.release) out.readers[static_cast<size_t>(slot)] = 0;
  }
  for (const Step& step : plan.steps) {
    const std::set<int> read(step.inputs.begin(), step.inputs.end());
    for (int slot : read)
      if (slot >= 0 && out.readers[static_cast<size_t>(slot)] >= 0) ++out.readers[static_cast<size_t>(slot)];
  }
  return out;
}

}  // namespace ortmodule
