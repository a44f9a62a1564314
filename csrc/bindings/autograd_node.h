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
// AccumulateGrad costs about 2.3 us per parameter. In a plain backward() of a graph whose leaf parameters have no
// hook, nothing can tell whether AccumulateGrad ran: this node then adds each gradient to `.grad` itself, as soon
// as it is computed, and hides the edges to those leaves from the engine for the rest of that evaluation (a post
// hook puts them back, for retain_graph). In every other case (autograd.grad, inputs=, hooks on the tensor or on its
// AccumulateGrad as DDP has them, an existing sparse or differently typed .grad) gradients go through the edges.
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
