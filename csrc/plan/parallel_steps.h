// What steps that run on several threads need to know of one another.
//
// Note [Happens before]
// In sequence, a value is done with after its last reader in the order of issue. On several threads that order says
// nothing: what counts is which steps are known to have ended when another begins, because it reads what they made,
// or what was made from that. So a value's memory is let go of when the last of its readers has ended, whichever that
// is (they are counted down), and a step may write over an operand only where each other reader of it, and of every
// value that may share its memory, happens before the step in any run. Steps that draw random numbers or have a side
// effect follow one another as they do in sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortmodule {

struct ExecutionPlan;
struct PlanRequest;

struct ParallelSteps {
  std::vector<std::vector<uint32_t>> before;  // per step: those that it waits for, by their places
  std::vector<char> light;                    // per step: takes less time than it takes to have another thread run it
  // Per slot of a value that is let go of: how many steps read it; -1 for all others.
  std::vector<int> readers;
};

// For a plan whose steps are the host's. Takes back the right to overwrite operands (Step::last_use) where it rests on
// the order of issue alone. Near linear: what would need a long search is taken to be unordered.
ParallelSteps parallel_steps(ExecutionPlan& plan, const PlanRequest& request);

}  // namespace ortmodule
