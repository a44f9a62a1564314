// What an operator's results look like, asked of its meta kernel, which reads no values.
//
// Many of those are written in Python, and slow beside what is computed here, so that answers are kept.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

namespace guarded {

// Tensors without memory, except for numbers of the host.
struct Shapes {
  torch::jit::Stack operands;  // afterwards: those that are written may have another shape
  torch::jit::Stack results;
};

// None if the meta kernel refuses: what is wrong, the CPU's says better.
std::shared_ptr<const Shapes> shapes_of(const c10::OperatorHandle& op, const torch::jit::Stack& operands);

}  // namespace guarded
