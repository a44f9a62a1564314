// The extension module ortmodule._C.
#include <algorithm>
#include <chrono>
#include <tuple>

#include "bindings/calls/before_backward.h"
#include "bindings/calls/fast_call.h"
#include "bindings/calls/module_call.h"
#include "bindings/calls/module_lookup.h"
#include "bindings/errors.h"
#include "bindings/generated.h"
#include "bindings/gradient.h"
#include "bindings/inference/python_inference.h"
#include "bindings/optim/python_optim.h"
#include "bindings/passes/python_pass.h"
#include "bindings/python_session.h"
#include "bindings/thread_state.h"
#include "bindings/tracing/cached_results.h"
#include "bindings/tracing/call_monitor.h"
#include "bindings/tracing/patched_call.h"
#include "bindings/tracing/stand_ins.h"
#include "bindings/training/python_training.h"
#include "runtime/kernel_clock.h"
#include "runtime/profiler_range.h"

namespace {

// (seconds, calls) inside kernels while `run` is called, the cost of reading the clock taken off; then the seconds
// inside the engine's autograd nodes, kernels and clock included.
std::tuple<double, int64_t, double> kernel_seconds(const pybind11::object& run) {
  constexpr int kEmpty = 200;
  double empty = 1;  // of the fastest batch: other processes may interrupt one
  for (int batch = 0; batch < 50; ++batch) {
    ortmodule::KernelClock clock;
    for (int i = 0; i < kEmpty; ++i) clock.time([] {});
    empty = std::min(empty, clock.seconds / kEmpty);
  }
  ortmodule::KernelClock clock;
  clock.start();
  try {
    run();
  } catch (...) {
    clock.stop();
    throw;
  }
  clock.stop();
  return {clock.seconds - empty * static_cast<double>(clock.calls), clock.calls, clock.node_seconds};
}

// Seconds that a node's range takes while no profiler looks on, the loop around it included; of the fastest of batches.
double idle_range_seconds() {
  constexpr int kRanges = 10000;
  const std::string name = "Identity";
  double fastest = 1;
  for (int batch = 0; batch < 50; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRanges; ++i) {
      bool looked_at = false;
      asm volatile("" : "+r"(looked_at));  // as the executor has it: known at run time alone
      const ortmodule::ProfilerRange range(looked_at, [&]() -> const std::string& { return name; });
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, taken.count() / kRanges);
  }
  return fastest;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ engine of ORTModule.";
  ortmodule::register_errors(m);
  ortmodule::register_session(m);
  ortmodule::register_inference(m);
  ortmodule::register_training(m);
  ortmodule::register_optim(m);
  ortmodule::register_before_backward(m);
  ortmodule::register_fast_call(m);
  ortmodule::register_module_call(m);
  ortmodule::register_module_lookup(m);
  ortmodule::register_call_monitor(m);
  ortmodule::register_patched_call(m);
  ortmodule::register_cached_results(m);
  ortmodule::register_stand_ins(m);
  ortmodule::register_thread_state(m);
  ortmodule::register_gradient_formulas(m);
  ortmodule::register_passes(m);
  ortmodule::register_generated(m);
  m.def("idle_range_seconds", &idle_range_seconds,
        "Seconds that a node's range in torch.profiler takes while no profiler looks on.");
  m.def("kernel_seconds", &kernel_seconds, pybind11::arg("run"),
        "Calls `run` and returns the seconds spent inside the engine's kernels, their number, and the seconds spent "
        "inside its autograd nodes.");
}
