// Forward and backward halves of one training graph.
//
// A forward run leaves its state behind: the frame with the values that backward reads. Any number of states may be
// outstanding; each is freed by its backward, or when it is dropped. Backward programs are chosen by which outputs
// received a gradient (Note [Backward variants]).
//
// Note [Backward variants]
// A model often returns more than its loss. Which outputs take part in the loss is known only at backward. Forward
// keeps what the gradient of all outputs needs; a backward for a subset is compiled on first use, from a copy of
// the graph in which the other outputs have no gradient. If that copy should need a value that forward did not
// keep, the full backward runs instead, with zeros for the missing gradients.
//
// A backward that does not keep the graph frees what the gradients of its outputs, and of those that they meet
// (plan/separate_backwards.h, Note [Separate backwards]), read. What is needed by outputs beside these stays until
// their own backward, which runs then as in eager: with torch's allocator, since the run's memory is given back.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/limits.h"
#include "ortmodule/export.h"
#include "plan/separate_backwards.h"
#include "products/matmul_provider.h"
#include "runtime/executor.h"
#include "runtime/first_run.h"
#include "runtime/input_binding.h"
#include "runtime/parallel/parallel_executor.h"
#include "runtime/result_memory.h"
#include "runtime/run_observer.h"
#include "runtime/value_cache.h"

namespace ortmodule {

// One compiled backward. `dy_slots[i]` is -1 where output i has no gradient input in this variant.
struct BackwardProgram {
  std::shared_ptr<const void> graph;  // keeps the plan's nodes alive
  std::unique_ptr<Executor> executor;
  std::vector<int> dy_slots;
  size_t slot_count = 0;
  std::vector<char> reads;  // per slot of forward; empty: it may read any of them
};

// Compiles the backward for a mask over the differentiable outputs; null when the mask cannot be served by what
// forward keeps.
using BackwardCompiler = std::function<std::shared_ptr<BackwardProgram>(const std::vector<bool>& mask)>;

struct TrainingProgram {
  std::shared_ptr<const void> graph;
  std::unique_ptr<Executor> forward;
  std::unique_ptr<ParallelExecutor> parallel;  // of the forward's plan; null: one thread issues its steps
  std::unique_ptr<InputBinding> binding;
  std::vector<int> input_slots;  // -1 where nothing reads the input
  std::vector<std::string> input_names;
  std::vector<size_t> y_outputs;  // graph outputs that can receive a gradient
  std::vector<std::string> y_names;
  std::vector<size_t> x_inputs;  // graph inputs whose gradient is wanted
  std::vector<std::string> x_names;
  std::vector<bool> x_reachable;  // false: the gradient is identically zero
  std::vector<int64_t> x_bytes;   // size of each gradient, 0 where it is not known before the run
  std::vector<int> saved_slots;
  std::vector<int> watched_slots;  // saved inputs and outputs: the caller could change them between the halves
  // (input, saved value that may be a view of it): the input is watched where it is one. Of these inputs, the witnesses
  // are kept for that alone.
  std::vector<std::pair<int, int>> watched_views;
  std::vector<int> witness_slots;
  std::vector<OutputSet> meets;        // per y (SeparateBackwards); empty: every y meets every other
  std::vector<OutputSet> needed_by;    // per saved slot: the ys whose gradient reads it; parallel to saved_slots
  std::vector<TypeInfo> output_types;  // of the plan
  std::vector<size_t> result_owners;   // per output, equal where eager's share memory (compile/result_owners.h)
  size_t slot_count = 0;
  MatmulProvider matmul = MatmulProvider::kAuto;
  Limits limits{};           // of each run, and of each backward
  bool plans_memory = true;  // on the CPU: places of a run's large values are learned and kept (runtime/step_memory.h)
  std::shared_ptr<BackwardProgram> full_backward;
  BackwardCompiler compile_backward;
};

class TrainingAgent {
 public:
  // What a watched slot's tensor was after forward: a write counts its version up, `.data = ` gives it other memory or
  // other strides.
  struct Seen {
    int slot;
    uint32_t version;
    const void* memory;
    uint64_t layout;
  };
  using Versions = std::vector<Seen>;
  struct RunState {
    Frame frame;
    Versions versions;
    // Sizes and type of each y where there are several: what zeros for an unused one are made of.
    std::vector<std::pair<std::vector<int64_t>, at::TensorOptions>> y_types;
    std::vector<ReadResult> read_results;
    OutputSet spent;     // ys whose backward has freed what it read; empty: none
    bool freed = false;  // nothing is left for any y
  };

  // A backward that runs in parts: `next` is the first step that has not run.
  struct BackwardRun {
    std::shared_ptr<BackwardProgram> program;  // null: no output has a gradient, and nothing is to be done
    Frame frame;
    std::unique_ptr<Measurement> measurement;  // of the first one
    std::shared_ptr<Allowance> allowance{};
    std::vector<ReadResult> read_results{};
    HalfObservers watching{};
    bool begun = false;
    size_t next = 0;
  };

  TrainingAgent(TrainingProgram program, c10::Device device);

  // Outputs in graph order; `state` receives what backward needs (null: nothing is kept); `unchecked` as in
  // InputBinding::bind. Takes the tensors out of `inputs`; who calls it holds each of them as well, for kernels
  // overwrite what nobody else holds. `inter_op`: what runs steps side by side, where the plan is for it and nobody
  // observes each; what such a run holds is not measured. `cached`: what need not be computed again
  // (runtime/value_cache.h), in a run of one step after the other. `results`: where outputs are wanted (Note [Bound
  // results]), of a run that keeps nothing.
  std::vector<at::Tensor> forward(std::vector<at::Tensor>&& inputs, std::shared_ptr<RunState>* state,
                                  const std::vector<size_t>* unchecked = nullptr, const InterOp* inter_op = nullptr,
                                  const CachedRun* cached = nullptr, ResultBuffers* results = nullptr);
  // `dys[i]` belongs to y_outputs[i] and may be undefined. sink(k, dx) gets the gradient of x_inputs[k].
  void backward(RunState& state, const std::vector<at::Tensor>& dys, bool keep_graph, const OutputSink& sink);
  // The same in parts: begin, then advance up to a step of the plan, at last to SIZE_MAX.
  std::unique_ptr<BackwardRun> begin_backward(RunState& state, const std::vector<at::Tensor>& dys, bool keep_graph);
  void advance(BackwardRun& run, size_t end, const OutputSink& sink);
  // Whether nothing is left for a backward when those of `spent` have freed what they read.
  bool is_spent(const OutputSet& spent) const { return remaining_after(spent).empty(); }
  // Segment of each gradient (plan/gradient_segments.h); empty where nothing has a gradient.
  const std::vector<size_t>& segments() const { return segments_; }

  // How many of the first outputs are handed to whoever called (runtime/result_memory.h); others are written back.
  void set_results(size_t count) { results_ = count; }

  // Graph inputs that the caller overwrites after each forward: outputs and what backward reads share no memory with
  // them.
  void set_overwritten(std::vector<size_t> inputs) { overwritten_ = std::move(inputs); }

  // What of forward depends on these graph inputs alone.
  CachedSteps cached_steps(const std::vector<size_t>& inputs) const;

  // Who looks at the runs; a session's agents share one list.
  void set_observers(std::shared_ptr<const RunObservers> observers) { observers_ = std::move(observers); }
  bool is_observed() const { return observers_->any(); }

  const TrainingProgram& program() const { return program_; }
  // The most that a forward and a backward held beyond inputs and parameters, as measured on the first run of each.
  MemoryPeak forward_peak() const { return first_forward_->peak(); }
  MemoryPeak backward_peak() const { return first_backward_->peak(); }
  // The kept memory of the session's runs; null where the device's allocator keeps its own (every GPU's does).
  const StepMemory* memory() const { return memory_.get(); }
  // A backward that has run, by its address; null: none.
  std::shared_ptr<const BackwardProgram> backward_at(const void* program);
  // Of forward, then of every variant of backward (see Executor::take_times).
  std::vector<StepTime> take_times();

 private:
  struct Variant {
    std::shared_ptr<BackwardProgram> program;
    OutputSet remaining;  // ys that may follow this backward, if it is a run's first; empty: none
  };
  const Variant& variant_for(const OutputSet& mask);
  // Those that may have a backward of their own when those of `spent` have freed what they read; empty: none.
  OutputSet remaining_after(const OutputSet& spent) const;
  // Whether what `program` reads is there in a run where only what `state.spent` leaves was kept.
  bool is_kept(const BackwardProgram& program, const RunState& state) const;
  // Takes from `state` what a backward runs on, and leaves what `remaining` needs.
  Frame take_frame(RunState& state, const OutputSet& remaining);
  // Of an input: its name, and when it may be changed; else empty.
  std::string input_hint(int slot) const;
  // What a run that begins now may take; null: anything.
  std::shared_ptr<Allowance> allowance() const;
  void run_forward(Frame& frame, bool filled, const CachedRun* cached);
  // An empty frame of the forward's size and room for versions; and a frame that is done with, which is emptied and
  // kept for the next run: allocating some kilobytes per step makes malloc tidy up all small blocks that the step
  // before freed.
  void take_room(RunState& state);
  void keep_slots(std::vector<at::Tensor> slots);
  void keep_versions(Versions versions);

  TrainingProgram program_;
  c10::Device device_;
  std::shared_ptr<StepMemory> memory_;
  std::unique_ptr<ResultPlaces> places_;
  std::mutex mutex_;
  std::map<OutputSet, Variant> variants_;
  std::vector<size_t> segments_;
  std::vector<size_t> overwritten_;
  size_t results_ = SIZE_MAX;
  bool convolves_ = false;               // on a device, whose convolutions give channels last
  std::vector<int> passing_slots_;       // not saved for backward
  std::vector<at::Tensor> spare_slots_;  // all undefined
  Versions spare_versions_;              // empty
  std::shared_ptr<const RunObservers> observers_ = std::make_shared<const RunObservers>();
  const std::shared_ptr<FirstRun> first_forward_ = std::make_shared<FirstRun>();
  const std::shared_ptr<FirstRun> first_backward_ = std::make_shared<FirstRun>();
};

}  // namespace ortmodule
