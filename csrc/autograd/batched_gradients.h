// Gradients of many directions at once: `torch.autograd.grad(..., is_grads_batched=True)`, a vectorized Jacobian.
//
// Torch gives the whole batch to one backward, in tensors that hide the axis. Kernels read memory, so the directions
// are taken one after another.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>

namespace ortmodule {

// Whether one of the gradients holds those of many directions.
bool any_batched(const torch::autograd::variable_list& grads);

// The gradients of one direction; `more`: another direction follows.
using OneBackward =
    std::function<torch::autograd::variable_list(const torch::autograd::variable_list& grads, bool more)>;

// What `backward` gives for each direction, batched as `grads` are. UNSUPPORTED where batches are nested.
torch::autograd::variable_list batched_gradients(const torch::autograd::variable_list& grads,
                                                 const OneBackward& backward);

}  // namespace ortmodule
