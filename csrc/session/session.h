// A compiled model that runs: what holds the graph, the agent, what is written back and what autograd is told.
//
// Knows nothing of Python: `_C.Session` (csrc/bindings/python_session.cpp) converts, a C++ program uses it as it is.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/higher_order.h"
#include "autograd/kept_edges.h"
#include "autograd/module_backward.h"
#include "compile/compile.h"
#include "ortmodule/export.h"
#include "runtime/run_stop.h"
#include "runtime/run_trace.h"

namespace ortmodule {

struct SessionSettings : CompileOptions {
  // Graph output -> graph input that it is written back into (BatchNorm's statistics, in-place changes of an input).
  // They follow the caller's outputs.
  std::vector<std::pair<size_t, size_t>> mutations;
  int threads = 0;  // of one operator, in infer(); 0: as torch has it when it runs
  // Of infer() where nodes run side by side (CompileOptions::parallel): how many at once; 0: as many as the graph and
  // torch's threads have room for. Without a pool of its own a session uses the process's.
  int inter_op_threads = 0;
  bool own_pool = true;
  bool spin = true;            // of its own pool: threads without work look for some before they sleep
  bool deterministic = false;  // infer() computes as under torch.use_deterministic_algorithms, on the CPU
};

// A tensor of the caller's that the session reads as an initializer.
struct GivenWeight {
  std::string name;
  SharedBytes bytes;
};

class Session {
 public:
  using Mutations = std::vector<std::pair<size_t, size_t>>;

  // `model`: a serialized onnx.ModelProto. Throws the core's typed errors.
  ORTMODULE_API Session(std::string_view model, SessionSettings options);

  // The caller's outputs for one value per graph input (sequences as in kernels/sequence_value.h), with history where
  // gradients are enabled; mutations are written back. `unchecked` as in InputBinding::bind; takes the tensors out of
  // `inputs` (TrainingAgent::forward). May be called from several threads.
  ORTMODULE_API std::vector<at::Tensor> run(std::vector<at::Tensor>&& inputs,
                                            const std::vector<size_t>* unchecked = nullptr) const;

  // The same as halves that autograd knows nothing of: no output has a history, and the agent's backward gives the
  // gradients of the trainable inputs to a sink, by their places among these (TrainingAgent). `state` null: nothing is
  // kept; `cached` may be null.
  std::vector<at::Tensor> forward(std::vector<at::Tensor>&& inputs, std::shared_ptr<TrainingAgent::RunState>* state,
                                  const CachedRun* cached = nullptr) const;

  // The outputs that `fetched` picks (empty: all), in the graph's order and without history; only what they need is
  // computed. Takes the tensors out of `inputs`. Ends with kTerminated where `stop` is asked for. For a session of
  // which nothing has a gradient. `results`: buffers by the graph's outputs, which are filled (Note [Bound results]).
  // May be called from several threads.
  ORTMODULE_API std::vector<at::Tensor> infer(std::vector<at::Tensor>&& inputs, const OutputSet& fetched = {},
                                              const RunStop* stop = nullptr, ResultBuffers* results = nullptr) const;

  // Notes when the steps of later infer()s run; null: no more.
  ORTMODULE_API void trace(std::shared_ptr<RunTrace> trace);
  // The agents of all kinds of calls so far.
  ORTMODULE_API std::vector<std::shared_ptr<TrainingAgent>> agents() const;

  // infer() for the outputs at the places `wanted`, in that order; `whole`: all are computed nevertheless. The caller
  // keeps `inputs`. `results`: buffers in the order of `wanted`. Throws kInvalidArgument for one in the memory of an
  // initializer that the session was given.
  ORTMODULE_API std::vector<at::Tensor> infer_places(const std::vector<at::Tensor>& inputs,
                                                     const std::vector<size_t>& wanted, const RunStop* stop,
                                                     bool whole = false, ResultBuffers* results = nullptr) const;

  // Lets go of what is kept of autograd between steps (Note [Kept accumulators]).
  void release_edges() const { edges_->release(); }

  // Shows it every later run, of every kind of call; until it is removed.
  void observe(std::shared_ptr<RunObserver> observer) const { observers_->add(std::move(observer)); }
  void stop_observing(const RunObserver* observer) const { observers_->remove(observer); }

  // How a call is differentiated again, of which graph inputs that needs the caller's tensors, and whether it is
  // expected from the first call on (HigherOrder).
  ORTMODULE_API void differentiate_again(std::vector<size_t> given, HigherOrder::Repeat repeat, bool expected = false);

  // The trainable inputs, by their places among them, in the order in which eager's hooks hear of their gradients.
  ORTMODULE_API void order_hooks(std::vector<size_t> order);

  // Which outputs are computed from which others: (output, one that it is computed from), by their places; and in
  // which order autograd would make their nodes. What it does not name comes first.
  ORTMODULE_API void order_results(const std::vector<std::pair<size_t, size_t>>& pairs,
                                   const std::vector<size_t>& sequence);

  // From now on calls with gradients run `quick`, a session of the same module that has some of this one's outputs, and
  // compute the others when somebody looks at them (Note [Late outputs]). Returns why it may not be; empty: it may.
  ORTMODULE_API std::string compute_late(const Session& quick);
  // Of each output, where these sizes tell; -1 where they do not.
  ORTMODULE_API std::vector<int64_t> output_bytes(const SymbolTable& sizes) const;
  // Null where no output is late.
  const std::shared_ptr<LatePlan>& late() const { return late_; }

  const CompiledModel& compiled() const { return compiled_; }
  c10::Device device() const { return device_; }
  const std::vector<DType>& input_types() const { return input_types_; }
  const Mutations& mutations() const { return mutations_; }
  // Names of the outputs that a gradient can come to, and how many inputs have a gradient.
  ORTMODULE_API std::vector<std::string> differentiable_outputs() const;
  size_t gradient_count() const { return compiled_.agent->program().x_inputs.size(); }
  // Names of the graph inputs that are overwritten with something that a gradient can reach, but for a normalization's
  // statistics: in PyTorch the caller's tensor would have a history then.
  ORTMODULE_API std::vector<std::string> written_with_history() const;

 private:
  std::shared_ptr<TrainingAgent> agent_for(const OutputSet& fetched) const;
  std::vector<at::Tensor> overwritten_of(const std::vector<at::Tensor>& inputs) const;
  void write_back(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& overwritten) const;

  void check_buffers(const ResultBuffers& results) const;

  CompiledModel compiled_;
  std::vector<GivenWeight> given_weights_;
  c10::Device device_;
  int threads_ = 0;
  bool deterministic_ = false;
  InterOp inter_op_;                                                     // without a pool where nodes run one by one
  mutable std::mutex mutex_;                                             // of the next two
  mutable std::map<OutputSet, std::shared_ptr<TrainingAgent>> fetches_;  // those that were asked for
  std::shared_ptr<RunTrace> trace_;
  const std::shared_ptr<RunObservers> observers_ = std::make_shared<RunObservers>();
  std::shared_ptr<KeptEdges> edges_ = std::make_shared<KeptEdges>();
  std::shared_ptr<const HigherOrder> higher_;
  HookOrder hook_order_;
  std::shared_ptr<const ResultOrder> results_;
  std::shared_ptr<LatePlan> late_;
  Mutations mutations_;
  // Statistics that a normalization updates: torch's own do not count as a change either, and a backward in PyTorch of
  // the same module, which has saved them, stays possible.
  std::unordered_set<size_t> uncounted_;
  std::vector<DType> input_types_;
  size_t first_mutation_ = SIZE_MAX;
};

}  // namespace ortmodule
