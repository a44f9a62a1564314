// What the device's own code sees of tensors: the same memory as tensors of the host, by address and without a hold.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

namespace guarded {

// Of one of the device: its memory, for a job to read and write. Of one of the host: itself.
at::Tensor host_view(const at::Tensor& x);
// As above, of the host too without a hold.
at::Tensor loose_view(const at::Tensor& x);

using Mapping = std::function<at::Tensor(const at::Tensor&)>;  // asked about defined tensors only
c10::IValue map_tensors(const c10::IValue& value, const Mapping& mapping);
// One tensor in several places stays one.
torch::jit::Stack map_stack(const torch::jit::Stack& stack, const Mapping& mapping);
std::vector<at::Tensor> tensors_of(const c10::IValue& value);  // defined ones

// While it lives, copies of this thread are the device's own and not counted (copies.h).
class OwnWork {
 public:
  OwnWork() { ++depth; }
  ~OwnWork() { --depth; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
  static bool going_on() { return depth > 0; }

 private:
  static thread_local int depth;
};

}  // namespace guarded
