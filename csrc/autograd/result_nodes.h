// Autograd nodes of the results of a call that has several.
//
// Note [Results of results]
// In eager every result has a node of its own, and where one is computed from another (`logits` from `features`) the
// way leads through it: a hook on `features`, `retain_grad()` and `autograd.grad(logits, features)` see the whole
// gradient, and what a hook makes of it flows on. Here one node, ModuleBackward, computes all gradients at once, from
// what comes to each result from outside. Before it each result has a light node that hands its gradient on, and edges
// to the nodes of the results that it is computed from. They carry nothing as long as nobody looks there: then the
// engine's backward is what it would be without them, but for the 3 us or so that torch takes for each node on the way.
// The one result that all others are computed from needs no node: ModuleBackward is what its edge leads to.
//
// Where somebody looks (a hook, retain_grad, a capture of the evaluation), the call is run again by PyTorch
// (autograd/higher_order.h): the gradient that comes to a result through others is computed when these have theirs,
// just before its own node, and those of the leaves last, with the gradients that hooks have left.
// Not here: which result is computed from which (result_order.h).
#pragma once

#include "autograd/module_backward.h"

namespace ortmodule {

class ResultBackward : public torch::autograd::Node {
 public:
  // Its edges lead to the results that are next to `result`, and to the step's ModuleBackward. One that `waits` stands
  // before the result's own node, for the last of all that lead to it; its edge leads there.
  ResultBackward(std::shared_ptr<StepBackward> step, size_t result, bool waits)
      : step_(std::move(step)), result_(result), waits_(waits) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "ORTModuleBackward"; }

 private:
  bool is_hooked(size_t result) const;
  // Whether somebody hears of this result's gradient in the present evaluation.
  bool is_looked_at(size_t result) const;
  // Keeps its gradient for those below it that somebody looks at, if there are any.
  void note(const at::Tensor& grad);
  // What comes to the result through others; undefined where nobody looks.
  at::Tensor gradient_of(size_t result);

  const std::shared_ptr<StepBackward> step_;
  const size_t result_;
  const bool waits_;
};

// Gives the outputs that can receive a gradient their history, `node` being the step's first ModuleBackward.
void tie_results(const std::shared_ptr<StepBackward>& step, const torch::autograd::Edge& node,
                 std::vector<at::Tensor>& outputs);

}  // namespace ortmodule
