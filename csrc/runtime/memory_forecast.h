// What a step will hold, from the plan and the sizes alone: before anything has run.
//
// Walks both halves as the executor would and counts storages as MemoryMeter does: a view has its source's, a kernel
// that may write over an operand which nobody else needs does so. Temporaries within kernels are not seen, by either. A
// size that only the run will tell counts as nothing and is said (`complete`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/training_agent.h"

namespace ortmodule {

// A storage: from the step that makes it to the one after which nothing holds it. Steps count through both halves.
struct ForecastBlock {
  const char* half;  // that it is made in
  std::string name;  // of its first value
  const Node* node;  // that makes it
  int64_t bytes;
  size_t first, end;  // alive in [first, end)
  size_t offset;      // in one arena for both halves
  bool saved;         // forward keeps it for backward
};

struct MemoryForecast {
  std::vector<ForecastBlock> blocks;
  int64_t peak_forward = 0, saved = 0, peak_backward = 0;  // bytes, as SessionStatistics has them
  size_t arena_bytes = 0;                                  // that hold all blocks at their offsets
  bool complete = true;
};

// `sizes`: what the symbols of the graph's inputs are.
MemoryForecast forecast_memory(const TrainingProgram& program, const SymbolTable& sizes);

}  // namespace ortmodule
