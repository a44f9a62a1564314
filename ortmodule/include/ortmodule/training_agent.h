// The two halves of a saved graph, for training loops of one's own: no autograd, no nn.Module.
//
//   const auto f = ortmodule::GraphFunction::load("model.onnx", {.trainable = {"w"}});
//   ortmodule::training::TrainingAgent agent(f, {"w"});
//   ortmodule::training::PartialGraphExecutionState state;
//   const auto outputs = agent.run_forward({x, w}, state);
//   const auto gradients = agent.run_backward({at::ones_like(outputs[0])}, state);  // of f's trainable inputs
//
// Any number of states may be outstanding; their backwards may come in any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ortmodule/error.h"
#include "ortmodule/export.h"
#include "ortmodule/graph_function.h"

namespace ortmodule::training {

// What a forward has left for its backward; let go of with the object.
class PartialGraphExecutionState {
 public:
  // Whether a backward may follow.
  bool is_pending() const { return run_ != nullptr; }

 private:
  friend class TrainingAgent;
  std::shared_ptr<void> run_;
  std::shared_ptr<const void> owner_;  // whose forward it was
};

// Values of a graph that depend on its weights alone, by name: the next forward takes them from here. To be emptied
// whenever a weight has changed.
using OrtValueCache = std::map<std::string, at::Tensor>;

class TrainingAgent {
 public:
  // `weights`: the inputs that stay the same between two updates, for the cache. kInvalidArgument for one that is none.
  ORTMODULE_API explicit TrainingAgent(const GraphFunction& function, const std::vector<std::string>& weights = {});

  // The outputs, without history, for one tensor per input (undefined: an optional one that is left out). `state` gets
  // what backward needs, in place of what it had. Throws as GraphFunction does.
  ORTMODULE_API std::vector<at::Tensor> run_forward(std::vector<at::Tensor> inputs, PartialGraphExecutionState& state,
                                                    OrtValueCache* cache = nullptr) const;

  // The gradients of the trainable inputs, in their order in GraphOptions (undefined: no output depends on it), from
  // those of the outputs: one per output, undefined where nothing flows; of outputs that have none it must be. The
  // state is used up. Throws kInvalidArgument for a state of another agent or for gradients of other sizes or types,
  // kRuntime for a state without a forward, and where somebody has written what the backward reads.
  ORTMODULE_API std::vector<at::Tensor> run_backward(std::vector<at::Tensor> gradients,
                                                     PartialGraphExecutionState& state) const;

 private:
  struct Cached;
  std::shared_ptr<const GraphFunction::State> state_;
  std::shared_ptr<const Cached> cached_;
};

}  // namespace ortmodule::training
