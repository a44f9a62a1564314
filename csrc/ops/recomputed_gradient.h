// Gradients of a function of ATen calls: runs it again under autograd. For operators that are rare enough for a second
// forward pass to cost less than a derivative of their own; see autograd_support.h for the scope.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/autograd_support.h"
#include "ops/kernel_context.h"

namespace ortmodule {

// Input 0 of the node is dY. Output k of the node is the gradient of inputs[differentiable[k]]. `forward` maps the list
// of inputs to Y and writes into none of them.
template <typename Forward>
void recomputed_gradient(KernelContext& c, std::vector<at::Tensor> inputs, const std::vector<size_t>& differentiable,
                         Forward&& forward) {
  AutogradScope scope;
  std::vector<at::Tensor> handles;
  for (size_t k = 0; k < differentiable.size(); ++k) {
    at::Tensor& value = inputs[differentiable[k]];
    if (!c.wants(k) || !value.defined()) continue;
    GradientInput input = gradient_input(value);
    value = std::move(input.tensor);
    handles.push_back(std::move(input.handle));
  }
  const at::Tensor y = forward(inputs);
  std::vector<at::Tensor> grads(handles.size());
  if (y.requires_grad()) grads = input_gradients({y}, handles, {c.in(0)});
  for (size_t k = 0, h = 0; k < differentiable.size(); ++k) {
    if (!c.wants(k) || !inputs[differentiable[k]].defined()) continue;
    c.out(k, grads[h].defined() ? grads[h].detach() : input_zeros(handles[h]).detach());
    ++h;
  }
}

}  // namespace ortmodule
