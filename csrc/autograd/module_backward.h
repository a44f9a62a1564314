// The autograd node behind a whole module's step, or the chain of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autograd/higher_order.h"
#include "autograd/kept_edges.h"
#include "autograd/late_outputs.h"
#include "autograd/result_order.h"
#include "ortmodule/export.h"
#include "runtime/training_agent.h"

namespace ortmodule {

// Runs the backward half when autograd reaches it.
//
// Note [Direct gradient writes]
// AccumulateGrad costs about 2.3 us per parameter. In a plain backward() nothing can tell whether the AccumulateGrad
// of a leaf ran when it has no hook and no holder but this node and the sessions: then each gradient is added to
// `.grad` here, as soon as it is computed. Where that holds for every edge, the edges are hidden from the engine for
// the rest of that evaluation (a post hook puts them back, for retain_graph). In every other case (autograd.grad,
// inputs=, hooks on the tensor or on its AccumulateGrad as DDP has them, a leaf that the loss reaches on another path
// as well, an existing sparse or differently typed .grad) gradients go through the edges.
//
// Note [Gradient segments]
// Autograd hands on a node's gradients when the node is done. Where somebody waits for them (DDP's buckets, an
// optimizer that steps in a hook) the backward is therefore a chain of nodes, one per segment of the plan
// (plan/gradient_segments.h): each runs its part, returns its gradients and, through a last edge that carries no
// value, lets the next one follow. AccumulateGrad goes before any other node in the engine's queue, so that hooks run
// between two segments. Where nobody waits there is one node.
//
// Note [Order of hooks]
// Of gradients that one node returns the engine's queue takes the leaves in an order of its own. Where several leaves
// have hooks that a user sees, each gradient is a segment, in the order in which eager's nodes would hand them on.
// Hooks that come between forward and backward find one node, whose edges then lie so that the queue takes them in that
// order.
using HookOrder = std::shared_ptr<const std::vector<size_t>>;  // gradients, the first one first; null: not known

struct StepBackward {
  StepBackward() = default;
  ~StepBackward() {
    if (late) late->end_gradients();
  }
  StepBackward(const StepBackward&) = delete;
  StepBackward& operator=(const StepBackward&) = delete;

  std::shared_ptr<TrainingAgent> agent;
  std::shared_ptr<TrainingAgent::RunState> state;  // null once all of it is freed
  // Where some results are late (Note [Late outputs]): the call, the state of its quick program once a backward has
  // begun there, which stands in for `state` until a late result has a gradient, and the ys whose backward has freed
  // what it read. Null and unfreed: the call has its states.
  std::shared_ptr<LateCall> late;
  std::shared_ptr<TrainingAgent::RunState> quick_state;
  bool late_ended = false;
  OutputSet quick_spent;
  std::shared_ptr<const HigherOrder> higher;  // null: its gradients have no history
  HookOrder hook_order;
  std::optional<GivenTensors> given;           // for `higher`
  std::shared_ptr<const ResultOrder> results;  // null: there is one alone
  // By result, whose node hears of its gradient, as which input; alive while a node is that leads there.
  std::vector<std::pair<torch::autograd::Node*, uint32_t>> result_nodes;

  // What goes on between two segments of one evaluation.
  struct Progress {
    std::unique_ptr<TrainingAgent::BackwardRun> run;  // null: all gradients are early
    TrainingAgent* agent = nullptr;                   // whose run that is
    std::vector<at::Tensor> early;                    // gradients that are there already, of later segments or all
  };
  // Somebody looks at results that others are computed from (Note [Results of results]), in one evaluation.
  struct Look {
    HigherOrder::Gradients gradients;
    std::vector<at::Tensor> dys;  // what results above those have got so far
    std::vector<char> looked;     // by result
  };
  std::mutex mutex;
  std::unordered_map<int64_t, Progress> progress;  // by the engine's graph task
  std::unordered_map<int64_t, Look> looks;         // the same

  // That of this evaluation, which it leaves.
  std::optional<Look> take_look();
  // Gradients of the call as `higher` gives them; `looked` as in HigherOrder::Repeat. Raises where there is none.
  HigherOrder::Gradients run_again(bool looked) const;
  // Begins a backward for these gradients of the results; with the lock held.
  Progress begin(const std::vector<at::Tensor>& dys, bool keep_graph);
  bool is_freed() const { return !state && (!late || late_ended); }
  // Whether nothing is left for a backward; lets go of what was kept for one, if so.
  bool release();
  // The engine's gradients, of all trainable inputs.
  std::vector<at::Tensor> engine_gradients(const Progress& progress) const;
};

class ModuleBackward : public torch::autograd::Node {
 public:
  // `gradients`: which ones this node returns, in the order of its edges; empty: all of them, of which there are
  // `count`. `first` receives the outputs' gradients.
  ModuleBackward(std::shared_ptr<StepBackward> step, std::vector<size_t> gradients, size_t count, bool first)
      : step_(std::move(step)), gradients_(std::move(gradients)), count_(count), first_(first) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "ORTModuleBackward"; }
  void release_variables() override;

  ~ModuleBackward() override;
  // Sets the edges, some or all of the step's. `kept_edges` gets them back where they are all.
  void set_edges(StepEdges edges, std::shared_ptr<KeptEdges> kept_edges);
  void restore_edges();
  // How many of the gradients that apply() has returned the engine shall see.
  size_t shown() const { return shown_; }

 private:
  torch::autograd::variable_list differentiated(torch::autograd::variable_list&& grads);
  // The leaf's `.grad` where this node may write it (Note [Direct gradient writes]), else null. `gradient`: the edge's.
  at::Tensor* direct_slot(size_t edge, size_t gradient) const;
  // The same with create_graph=True.
  torch::autograd::variable_list apply_with_history(const torch::autograd::variable_list& grads);
  // The same for gradients that hold those of many directions.
  torch::autograd::variable_list apply_batched(const torch::autograd::variable_list& grads);
  // The same where somebody looks at a result that another is computed from.
  torch::autograd::variable_list apply_looked(const torch::autograd::variable_list& grads,
                                              const StepBackward::Look& look);
  // The step's gradients with history, for those of its outputs; `engine`: has the same without.
  torch::autograd::variable_list with_history(const torch::autograd::variable_list& grads,
                                              const StepBackward::Progress& engine);
  // This node's gradients, where the first one has computed all.
  torch::autograd::variable_list hand_on(StepBackward::Progress progress);
  bool returns_all() const { return first_ && gradients_.empty() && !has_next(); }
  // How many hold the accumulator of this gradient's leaf for us.
  size_t holders(size_t gradient) const {
    return ((*kept_)[gradient] ? 2 : 1) + (idle_ ? idle_->holders(gradient) : 0);
  }
  // Note [Leaves that get nothing]: `results`, one per edge, in the order of the edges as it leaves them.
  torch::autograd::variable_list without_empty(torch::autograd::variable_list results);
  // Arranges the edges that the engine shall see for Note [Order of hooks]; false: they may lie as they do.
  bool put_in_hook_order(std::vector<size_t>& shown) const;
  // Undoes what that did for the evaluation before.
  void put_in_order();
  size_t gradient_of(size_t edge) const { return returns_all() ? edge : gradients_[edge]; }
  bool has_next() const { return num_outputs() > count_; }
  // The backward of this evaluation: begun here, or by the node before.
  StepBackward::Progress take_progress(const torch::autograd::variable_list& grads);
  void leave_progress(StepBackward::Progress progress);
  // What wakes the next node: nothing, on the device whose queue it is in.
  at::Tensor signal() const;

  const std::shared_ptr<StepBackward> step_;
  const std::vector<size_t> gradients_;
  const size_t count_;
  const bool first_;
  std::vector<const at::Tensor*> leaves_;  // parallel to the edges
  std::vector<const c10::TensorImpl*> impls_;
  std::shared_ptr<const KeptAccumulators> kept_;
  std::shared_ptr<KeptEdges> kept_edges_;
  std::optional<KeptEdges::TakenIdle> idle_;  // during apply()
  torch::autograd::edge_list hidden_edges_;
  std::vector<size_t> order_;  // where the edges belong that lie in another order; empty: none does
  size_t shown_ = SIZE_MAX;
};

// The step behind the nodes of its results; null where nothing has a gradient.
ORTMODULE_API ModuleBackward* step_behind(const std::vector<std::optional<at::Tensor>>& results);

// Forward with history: runs the agent and ties its differentiable outputs to new ModuleBackward nodes. `unchecked` as
// in InputBinding::bind; `higher`, `hook_order`, `results` and `late` may be null. Takes the tensors out of `inputs`
// (TrainingAgent::forward).
std::vector<at::Tensor> run_with_history(const std::shared_ptr<TrainingAgent>& agent,
                                         const std::shared_ptr<KeptEdges>& kept_edges,
                                         const std::shared_ptr<const HigherOrder>& higher, const HookOrder& hook_order,
                                         const std::shared_ptr<const ResultOrder>& results,
                                         const std::shared_ptr<LatePlan>& late, std::vector<at::Tensor>&& inputs,
                                         const std::vector<size_t>* unchecked = nullptr);

}  // namespace ortmodule
