// Turns an ATen node's `arguments` into a call's stack; see Note [Arguments of an ATen node] in aten.cpp.
//
// What does not change from run to run is parsed once. A call copies the prepared values and fills in its tensors and
// the sizes that depend on symbols.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "base/dim.h"
#include "graph/graph.h"
#include "kernels/kernel_context.h"

namespace ortmodule {

class AtenArguments {
 public:
  // Throws kInvalidGraph for an argument that cannot be read or does not fit the schema.
  AtenArguments(const Node& node, const c10::FunctionSchema& schema);

  // `inputs[i]` stands for the node's input i.
  torch::jit::Stack stack(const KernelContext& c, const std::vector<at::Tensor>& inputs) const;
  // Inputs that are tensors of the call; symbols come behind them.
  size_t tensor_count() const { return next_input_; }

 private:
  struct Slot {
    enum Kind { kConstant, kTensor, kTensors, kOptionalTensors, kInt, kInts } kind = kConstant;
    c10::IValue value;             // kConstant
    std::vector<int> inputs;       // input indices, -1 for None
    std::vector<Dim> expressions;  // kInt, kInts
  };

  Slot parse(const std::string& text, const c10::Argument& argument);
  [[noreturn]] void bad(const std::string& text, const c10::Argument& argument, const std::string& why) const;

  std::string where_;
  std::vector<Slot> slots_;
  std::vector<std::string> symbols_;
  size_t next_input_ = 0;
};

}  // namespace ortmodule
