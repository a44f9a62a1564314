// A compiled model for Python: `_C.Session`.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "bindings/autograd_node.h"
#include "bindings/higher_order.h"
#include "bindings/kept_edges.h"
#include "compile/compile.h"

namespace ortmodule {

class Session {
 public:
  // Graph output -> graph input that it is written back into (BatchNorm's statistics, in-place changes of an input).
  using Mutations = std::vector<std::pair<size_t, size_t>>;

  Session(const pybind11::bytes& model, const std::string& mode, const std::vector<std::string>& trainable,
          const pybind11::dict& options);

  // The caller's outputs for one value per graph input (sequences as in kernels/sequence_value.h); mutations are
  // written back. `checked` as in InputBinding::bind; takes the tensors out of `inputs` (TrainingAgent::forward).
  // Releases the GIL.
  std::vector<at::Tensor> run(std::vector<at::Tensor>&& inputs, const std::vector<char>* checked = nullptr) const;

  // Lets go of what is kept of autograd between steps (Note [Kept accumulators]).
  void release_edges() const { edges_->release(); }

  // Calls `callback` after every step of every later run (Note [Observed runs]); None: no more.
  void observe(const pybind11::object& callback) const;

  // How a call is run again, repeat(given, random_state, looked) as in HigherOrder: it returns gradients(dys, whole,
  // of, dxs), with None for an undefined tensor and outputs by name.
  void differentiate_again(std::vector<size_t> given, const pybind11::object& repeat);

  // The trainable inputs, by their places among them, in the order in which eager's hooks hear of their gradients.
  void order_hooks(std::vector<size_t> order);

  // Which outputs are computed from which others: (output, one that it is computed from), by their places; and in
  // which order autograd would make their nodes. What it does not name comes first.
  void order_results(const std::vector<std::pair<size_t, size_t>>& pairs, const std::vector<size_t>& sequence);

  pybind11::dict statistics() const;
  // (half, value, operator and node that made it, bytes, kind) of what each half of the first run held when it held
  // most. Kinds: "saved" by forward for backward, "gradient", "output", "given" by autograd, "temporary".
  pybind11::list memory_at_peak() const;
  // The graph of a stage as a serialized ModelProto; `portable` in operators that any ONNX runtime has.
  pybind11::bytes stage_model(const std::string& name, bool portable) const;
  std::string plan_text() const;
  // (phase, operator, node, calls, seconds) of each step that ran while profiled, since the last time.
  pybind11::list take_times() const;
  const CompiledModel& compiled() const { return compiled_; }
  const std::vector<DType>& input_types() const { return input_types_; }
  const Mutations& mutations() const { return mutations_; }
  // Names of the graph inputs that are overwritten with something that a gradient can reach, but for a normalization's
  // statistics: in PyTorch the caller's tensor would have a history then.
  std::vector<std::string> written_with_history() const;

 private:
  CompiledModel compiled_;
  std::shared_ptr<KeptEdges> edges_ = std::make_shared<KeptEdges>();
  std::shared_ptr<const HigherOrder> higher_;
  HookOrder hook_order_;
  std::shared_ptr<const ResultOrder> results_;
  Mutations mutations_;
  // Statistics that a normalization updates: torch's own do not count as a change either, and a backward in PyTorch of
  // the same module, which has saved them, stays possible.
  std::unordered_set<size_t> uncounted_;
  std::vector<DType> input_types_;
  size_t first_mutation_ = SIZE_MAX;  // mutations follow the caller's outputs
};

void register_session(pybind11::module_& m);

}  // namespace ortmodule
