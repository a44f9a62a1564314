// From a serialized model to what runs it: the stages of compile/stages.h, then what forward keeps, fusion and plans.
//
// Every stage's graph can be kept and looked at; each is stamped with its name, its seconds and its node count.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "compile/stages.h"
#include "onnx/import.h"
#include "placement/partition.h"
#include "plan/node_order.h"
#include "runtime/training_agent.h"
#include "transforms/fuse.h"
#include "transforms/recompute.h"

namespace ortmodule {

struct CompileOptions {
  bool training = true;
  std::vector<std::string> trainable;  // graph inputs whose gradient is wanted
  c10::Device device = c10::kCPU;
  std::string dropout = "fast";  // "fast": counter-based, mask never stored; "torch": eager's draws
  bool whole_masks = false;      // of "fast": a mask is the same whichever rows are left out
  std::string matmul = "auto";   // "auto": measured per shape class; "aten", "onednn"
  // What forward may keep for backward, in bytes or up to 1 as a fraction of what it would keep without recomputation;
  // none: only what is nearly free is recomputed. Negative: nothing is.
  std::optional<double> memory_budget;
  bool fusion = true;                // clusters of elementwise work become one kernel each, on the CPU
  std::vector<std::string> weights;  // graph inputs that are parameters: backward may read them, trained or not
  SymbolTable sizes;                 // of the call that is compiled for; estimates are made with them
  ImportOptions import;              // of the model
  ExecutionOrder order = ExecutionOrder::kDefault;
  PassLevel level = PassLevel::kExtended;  // the passes that run
  bool memory_pattern = true;              // TrainingProgram::plans_memory
  bool memory_reuse = true;                // PlanRequest::reuse
  bool parallel = false;                   // PlanRequest::parallel, on the CPU, where nothing has a gradient
  std::vector<ProviderSpec> providers;     // in order of priority; none: the device's own
  bool keep_stages = false;                // keep a copy of every stage's graph
  bool keep_history = false;               // note what each pass and stage did to the graph
  bool verify = false;                     // re-resolve after every pass
  PassChoice passes;                       // a user's passes, and those that are left out
  std::shared_ptr<PassListener> pass_listener;
};

// Plans a forward for the outputs of a mask alone.
using FetchCompiler = std::function<std::shared_ptr<TrainingAgent>(const OutputSet& mask)>;

struct CompiledModel {
  std::shared_ptr<Graph> graph;  // the final graph, forward and backward
  std::shared_ptr<TrainingAgent> agent;
  std::vector<Stage> stages;
  std::vector<std::pair<std::string, PassRecord>> passes;  // stage, what a pass did at it
  ModelInfo info;
  std::vector<std::string> input_names, output_names;
  // What is random, before fusion: an operator each, with its stream where it has one; each once.
  std::set<std::string> draws;
  size_t forward_nodes = 0, backward_nodes = 0;
  RecomputeResult recomputed;
  FusionResult fused;
  PlacementResult placed;                       // of a session with more than the host
  std::shared_ptr<const GraphHistory> history;  // null unless it is kept
  FetchCompiler compile_fetches;                // null where something has a gradient
};

// Throws the core's typed errors; a model that needs no gradient compiles to a forward alone.
CompiledModel compile(std::string_view model, const CompileOptions& options);

}  // namespace ortmodule
