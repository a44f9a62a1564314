// What libFuzzer calls with bytes that it has made: all that the core does with a model before a kernel runs.
//
// Reading, functions, types, passes, gradients, fusion, plans, writing; without torch, so that every line that runs is
// built with the sanitizers (`make fuzz`). Errors of the library are fine, everything else ends the process: a report,
// another exception, an error that says INTERNAL, 5 s, 1 GB.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "compile/stages.h"
#include "compile/training_graph.h"
#include "fuzz_limits.h"
#include "onnx/export.h"
#include "plan/execution_plan.h"
#include "records/resolve.h"
#include "transforms/fuse.h"
#include "transforms/recompute.h"
#include "transforms/split_collectives.h"

namespace ortmodule {
namespace {

std::vector<std::string> floating_inputs(const Graph& graph) {
  std::vector<std::string> names;
  for (const NodeArg* in : graph.inputs())
    if (is_floating(in->type().dtype)) names.push_back(in->name());
  return names;
}

void plan(const Graph& graph) {
  PlanRequest request;
  request.name = "forward";
  request.device_type = "cpu";
  request.outputs = graph.outputs();
  SlotTable slots;
  make_plan(graph, request, slots);
}

// As csrc/compile/compile.cpp calls the stages.
void compile(std::string_view model, bool training) {
  StageLog log(false);
  ImportOptions options;
  options.limits = fuzz_limits();
  const std::unique_ptr<Graph> graph = imported(model, options, log);
  PassSettings settings;
  settings.training = training;
  settings.manager.verify = true;
  if (training) settings.trainable = floating_inputs(*graph);
  transform(*graph, PassStage::kForward, settings);
  resolve(*graph);
  if (training) {
    const Roots roots = find_roots(*graph, settings.trainable);
    if (!roots.y_outputs.empty()) {
      differentiate(*graph, roots, {});
      transform(*graph, PassStage::kJoint, settings);
      resolve(*graph, {.infer = false});
      recompute(*graph, {});
      resolve(*graph, {.infer = false});
    }
  }
  fuse(*graph);
  resolve(*graph, {.infer = false});
  split_collectives(*graph, {});
  plan(*graph);
  const std::string written = export_model(*graph);
  StageLog again(false);
  imported(written, options, again);  // what we write we read
}

template <typename Run>
void attempt(Run run) {
  const Allowance::Scope limited(std::make_shared<Allowance>(fuzz_limits()));
  try {
    run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) return;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

}  // namespace
}  // namespace ortmodule

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ortmodule;
  const std::string_view model(reinterpret_cast<const char*>(data), size);
  attempt([&] { compile(model, false); });
  attempt([&] { compile(model, true); });
  attempt([&] {
    StageLog log(false);
    ImportOptions options;
    options.limits = fuzz_limits();
    const std::unique_ptr<Graph> graph = imported(model, options, log);
    std::vector<std::string> outputs;
    for (const NodeArg* out : graph->outputs()) outputs.push_back(out->name());
    training_graph(model, {floating_inputs(*graph), {}, outputs});
  });
  return 0;
}
