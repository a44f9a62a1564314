// The one autograd node behind a whole module's step.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "runtime/training_agent.h"

namespace ortmodule {

// Runs the backward half when autograd reaches it.
//
// Note [Direct gradient writes]
// AccumulateGrad costs about 2.3 us per parameter. In a plain backward() nothing can tell whether the AccumulateGrad
// of a leaf ran when it has no hook and no holder but this node: then each gradient is added to `.grad` here, as soon
// as it is computed. Where that holds for every edge, the edges are hidden from the engine for the rest of that
// evaluation (a post hook puts them back, for retain_graph); else the engine gets undefined gradients for the leaves
// that are done. In every other case (autograd.grad, inputs=, hooks on the tensor or on its AccumulateGrad as DDP has
// them, a leaf that the loss reaches on another path as well, an existing sparse or differently typed .grad)
// gradients go through the edges.
class ModuleBackward : public torch::autograd::Node {
 public:
  ModuleBackward(std::shared_ptr<TrainingAgent> agent, std::shared_ptr<TrainingAgent::RunState> state)
      : agent_(std::move(agent)), state_(std::move(state)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "ORTModuleBackward"; }
  void release_variables() override { state_.reset(); }

  // Leaf tensors by gradient index (undefined for inputs that are not leaves); parallel to the edges.
  void set_leaves(std::vector<at::Tensor> leaves);
  void restore_edges();

 private:
  bool may_write_directly(const at::Tensor& leaf, const torch::autograd::Edge& edge) const;

  std::shared_ptr<TrainingAgent> agent_;
  std::shared_ptr<TrainingAgent::RunState> state_;
  std::vector<at::Tensor> leaves_;
  torch::autograd::edge_list hidden_edges_;
};

// Forward with history: runs the agent and ties its differentiable outputs to a new ModuleBackward.
std::vector<at::Tensor> run_with_history(const std::shared_ptr<TrainingAgent>& agent,
                                         const std::vector<at::Tensor>& inputs);

}  // namespace ortmodule
