#include "bindings/autograd_node.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "base/status.h"

namespace ortmodule {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

// Edge::function is a std::shared_ptr up to torch 2.12 and an intrusive_ptr after it.
using NodePtr = decltype(Edge::function);

template <typename Pointer, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<ModuleBackward>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<ModuleBackward>(std::forward<Args>(args)...);
}

struct RestoreEdges : torch::autograd::FunctionPostHook {
  explicit RestoreEdges(ModuleBackward* node) : node(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node->restore_edges();
    return outputs;
  }
  ModuleBackward* node;  // owns this hook
};

// What AccumulateGrad does for dense gradients: takes a buffer that nobody else holds, copies otherwise, adds in place.
void write_gradient(const at::Tensor& leaf, at::Tensor gradient) {
  at::Tensor& slot = leaf.mutable_grad();
  if (slot.defined()) {
    slot.add_(gradient);
    return;
  }
  const bool sole_owner = gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  const bool same_layout =
      gradient.strides() == leaf.strides() || (gradient.is_contiguous() && !leaf.is_non_overlapping_and_dense());
  // A view of a larger buffer would keep all of it alive.
  const bool whole = gradient.nbytes() == gradient.storage().nbytes();
  if (sole_owner && same_layout && whole) {
    slot = std::move(gradient);
    return;
  }
  at::Tensor copy = leaf.is_non_overlapping_and_dense()
                        ? at::empty_strided(leaf.sizes(), leaf.strides(), gradient.options())
                        : at::empty(leaf.sizes(), gradient.options());
  slot = copy.copy_(gradient);
}

}  // namespace

void ModuleBackward::set_leaves(std::vector<at::Tensor> leaves) { leaves_ = std::move(leaves); }

void ModuleBackward::restore_edges() {
  if (!hidden_edges_.empty()) next_edges() = std::move(hidden_edges_);
  hidden_edges_.clear();
}

bool ModuleBackward::may_write_directly(const at::Tensor& leaf, const Edge& edge) const {
  if (!leaf.defined() || !edge.function) return false;
  auto& accumulator = *edge.function;
  // Another holder is another path to this leaf, which waits for our edge, or somebody who may hook it.
  if (edge.function.use_count() > 1) return false;
  if (!accumulator.pre_hooks().empty() || !accumulator.post_hooks().empty() ||
      !accumulator.tensor_pre_hooks().empty() || accumulator.tensor_post_acc_grad_hooks())
    return false;
  const at::Tensor& existing = leaf.grad();
  return !existing.defined() || (existing.layout() == at::kStrided && existing.scalar_type() == leaf.scalar_type() &&
                                 existing.device() == leaf.device() && !existing.requires_grad());
}

variable_list ModuleBackward::apply(variable_list&& grads) {
  ORTMODULE_CHECK(!at::GradMode::is_enabled(), kUnsupported,
                  "ORTModule's backward cannot be differentiated again: create_graph=True is not supported; call the "
                  "wrapped module itself (model.module) where second derivatives are needed");
  ORTMODULE_CHECK(state_, kRuntime,
                  "Trying to backward through the graph a second time (or directly access saved tensors after they "
                  "have already been freed). Saved intermediate values of the graph are freed when you call "
                  ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
                  "graph a second time or if you need to access saved tensors after calling backward.");
  const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
  const bool plain = exec_info && exec_info->empty();
  const size_t count = num_outputs();
  std::vector<char> direct(count, 0);
  bool all_direct = plain;
  for (size_t i = 0; plain && i < count; ++i) {
    direct[i] = may_write_directly(leaves_[i], next_edge(i));
    all_direct = all_direct && (direct[i] || !next_edge(i).is_valid());
  }
  variable_list results(count);
  const OutputSink sink = [&](size_t index, at::Tensor value) {
    if (direct[index])
      write_gradient(leaves_[index], std::move(value));
    else
      results[index] = std::move(value);
  };
  agent_->backward(*state_, grads, torch::autograd::get_current_graph_task_keep_graph(), sink);
  // Note [Direct gradient writes]; an undefined result is a gradient of zero, which AccumulateGrad passes over.
  if (!all_direct) return results;
  hidden_edges_ = std::move(next_edges());
  next_edges().clear();
  return {};
}

std::vector<at::Tensor> run_with_history(const std::shared_ptr<TrainingAgent>& agent,
                                         const std::vector<at::Tensor>& inputs) {
  const TrainingProgram& program = agent->program();
  bool wanted = at::GradMode::is_enabled() && !program.y_outputs.empty();
  if (wanted) {
    wanted = false;
    for (size_t i : program.x_inputs) wanted = wanted || inputs[i].requires_grad();
  }
  if (!wanted) return agent->forward(inputs, nullptr);

  std::shared_ptr<TrainingAgent::RunState> state;
  std::vector<at::Tensor> outputs = agent->forward(inputs, &state);
  // An output that is saved, or that is an input, gets a tensor of its own: history is set on the caller's alone.
  for (size_t i : program.y_outputs)
    if (outputs[i].use_count() > 1) outputs[i] = outputs[i].detach();

  const auto node = make_node<NodePtr>(agent, std::move(state));
  edge_list edges;
  std::vector<at::Tensor> leaves;
  edges.reserve(program.x_inputs.size());
  leaves.reserve(program.x_inputs.size());
  for (size_t k = 0; k < program.x_inputs.size(); ++k) {
    const at::Tensor& x = inputs[program.x_inputs[k]];
    // An input whose gradient is identically zero has no edge, as in eager: its .grad stays None.
    const bool connected = x.requires_grad() && program.x_reachable[k];
    edges.push_back(connected ? torch::autograd::impl::gradient_edge(x) : Edge());
    leaves.push_back(connected && x.is_leaf() ? x : at::Tensor());
  }
  node->set_next_edges(std::move(edges));
  node->set_leaves(std::move(leaves));
  node->add_post_hook(std::make_unique<RestoreEdges>(&*node));
  for (size_t i : program.y_outputs) torch::autograd::set_history(outputs[i], node);
  return outputs;
}

}  // namespace ortmodule
