// Kernels of an operator and its gradient from one function on tensors; see rerun.h.
//
// The function takes the node's inputs (undefined where absent) and returns its outputs in order. Under autograd it
// must not write into its inputs, nor into a tensor that a derivative reads again.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/autograd_scope.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// The first element of an input that holds a size or an axis; `fallback` where it is absent.
inline int64_t int_of(const at::Tensor& input, int64_t fallback) {
  return input.defined() && input.numel() > 0 ? input.reshape(-1)[0].item<int64_t>() : fallback;
}

inline Kernel function_kernel(TensorFunction function) {
  return [function = std::move(function)](KernelContext& c) {
    std::vector<at::Tensor> inputs(c.input_count());
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = c.in_or_undefined(i);
    std::vector<at::Tensor> outputs = function(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) c.out(i, std::move(outputs[i]));
  };
}

inline Kernel rerun_kernel(const Node& node, TensorFunction function) {
  const auto first = static_cast<size_t>(std::max<int64_t>(0, node.get_int("forward_outputs", 1)));
  return [first, function = std::move(function)](KernelContext& c) {
    AutogradScope scope;
    std::vector<at::Tensor> inputs, handles, outputs, grads;
    std::vector<size_t> slots;
    for (size_t i = 0; first + i < c.input_count(); ++i) {
      inputs.push_back(c.in_or_undefined(first + i));
      if (!c.wants(i) || !inputs.back().defined()) continue;
      GradientInput input = gradient_input(inputs.back());
      inputs.back() = std::move(input.tensor);
      handles.push_back(std::move(input.handle));
      slots.push_back(i);
    }
    const std::vector<at::Tensor> all = function(inputs);
    for (size_t i = 0; i < std::min(first, all.size()); ++i) {
      if (!c.has(i) || !all[i].defined() || !all[i].requires_grad()) continue;
      outputs.push_back(all[i]);
      grads.push_back(c.in(i));
    }
    std::vector<at::Tensor> results(handles.size());
    if (!outputs.empty()) results = input_gradients(outputs, handles, grads);
    for (size_t i = 0; i < slots.size(); ++i)
      c.out(slots[i], results[i].defined() ? results[i].detach() : input_zeros(handles[i]).detach());
  };
}

// Registers both: ORTMODULE_KERNEL("", LSTM, "aten", function_kernel_of<make>) and
// ORTMODULE_KERNEL("ai.ortmodule", LSTMGrad, "aten", rerun_kernel_of<make>).
template <TensorFunction (*make)(const Node&)>
Kernel function_kernel_of(const Node& node) {
  return function_kernel(make(node));
}
template <TensorFunction (*make)(const Node&)>
Kernel rerun_kernel_of(const Node& node) {
  return rerun_kernel(node, make(node));
}

}  // namespace ortmodule
