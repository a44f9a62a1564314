// What a session says of itself: counts, seconds, bytes, its plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ortmodule/export.h"
#include "runtime/memory_forecast.h"
#include "session/session.h"

namespace ortmodule {

struct SessionStatistics {
  size_t forward_nodes = 0, backward_nodes = 0;
  std::map<std::string, int> aten_nodes;  // forward nodes without a record of their own, by operator
  size_t gradients = 0;                   // trainable inputs that the outputs hang on
  size_t gradient_segments = 0;
  std::vector<std::pair<std::string, double>> seconds;     // of each stage of the compilation
  std::vector<std::pair<std::string, PassRecord>> passes;  // stage, what a pass did at it
  size_t recomputed_nodes = 0, fused_kernels = 0, fused_nodes = 0;
  int64_t peak_forward_bytes = 0, peak_backward_bytes = 0, saved_bytes = 0;  // of the first run
  size_t arena_bytes = 0;
  int64_t unplanned_allocations = 0;
  SymbolTable sizes;  // of the graph's symbols in the last run that was profiled
};

// A value that was in memory when a half of the first run held most.
struct PeakValue {
  const char* half;            // "forward", "backward"
  std::string name, op, node;  // the value, and what made it; empty where nothing of the graph did
  int64_t bytes;
  const char* kind;  // "saved" by forward for backward, "gradient", "output", "given" by autograd, "temporary"
};

// A value as a step of a plan has it.
struct PlannedValue {
  std::string name, type;  // type and shape as text
  int slot;
  double bytes;  // -1: not known
};

struct PlannedStep {
  const char* kind;
  size_t stream;
  std::vector<std::pair<int, bool>> waits_for;  // notifications, and whether the host waits
  int notifies;                                 // -1: nothing
  std::string provider;                         // empty where nodes have no places
  std::string op, node;
  std::vector<PlannedValue> inputs, outputs;
  std::vector<int> release;  // slots
  StepCost cost;
  double seconds;  // mean of the runs that were profiled; -1: none
};

struct PlannedHalf {
  std::string name;                                // "forward", "backward"
  std::vector<std::string> streams;                // the device of each
  std::vector<PlannedStep> steps;                  // in the order in which they are issued
  std::vector<std::pair<int, bool>> waits_at_end;  // as PlannedStep::waits_for
};

// An allocation of a run's that has its place, or that torch's allocator serves.
struct PlacedBlock {
  int64_t bytes;
  size_t first, end;  // steps, counted through both halves: made in `first`, its place free again in `end`
  const char* arena;  // "passing", "lasting" (what lives on when a step is over: results, gradients); "torch": none
  size_t offset;      // in the arena
};

struct PlacedMemory {
  std::vector<PlacedBlock> blocks;      // large ones, temporaries within kernels among them
  size_t forward_steps = 0, steps = 0;  // 0: nothing is placed
  std::vector<std::string> values;      // by step: the first value that it makes; empty where it is not known
  size_t passing_bytes = 0, lasting_bytes = 0;
};

// A step that ran while profiled.
struct ProfiledStep {
  const char* phase;  // "forward", "backward"
  std::string op, node;
  std::string value;  // the first that it makes
  int64_t calls;
  double seconds;
  StepCost cost;  // of all calls
};

ORTMODULE_API SessionStatistics statistics_of(const Session& session);
ORTMODULE_API std::vector<PeakValue> memory_at_peak(const Session& session);
// The graph of a stage as a serialized ModelProto; `portable`: in operators that any ONNX runtime has. Throws where
// there is no such stage, or the session was made without keep_stages, without which the last one's alone is there.
ORTMODULE_API std::string stage_model(const Session& session, const std::string& stage, bool portable);
// With bytes, operations and seconds of each step, where they are known; `sizes` as in plans_of.
ORTMODULE_API std::string plan_text(const Session& session, const SymbolTable& sizes = {});
// `sizes`: of the symbols of the graph's inputs, of a call that need not have run.
ORTMODULE_API std::vector<PlannedHalf> plans_of(const Session& session, const SymbolTable& sizes);
ORTMODULE_API MemoryForecast forecast_of(const Session& session, const SymbolTable& sizes);
// What the graph's symbols are in a run with such inputs, of which the types and sizes alone are read. Throws
// kInvalidArgument where they do not fit the graph.
ORTMODULE_API SymbolTable sizes_of(const Session& session, const std::vector<at::Tensor>& inputs);
// Where the runs of the sizes that ran last have their large values: known from the second such run on.
ORTMODULE_API PlacedMemory placed_memory(const Session& session);
// Since the last time.
ORTMODULE_API std::vector<ProfiledStep> take_times(const Session& session);

}  // namespace ortmodule
