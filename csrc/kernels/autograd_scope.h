// Autograd inside a kernel, for operators whose derivative only PyTorch knows.
//
// Kernels run below autograd. A scope undoes that for its lifetime on this thread: autograd's dispatch keys come back
// and gradients are recorded, whatever mode the caller is in. Nothing here needs the GIL, and the GIL must not be
// held: an operator or a derivative that is written in Python takes it by itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace ortmodule {

class AutogradScope {
 public:
  AutogradScope();
  ~AutogradScope();
  AutogradScope(const AutogradScope&) = delete;
  AutogradScope& operator=(const AutogradScope&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

// An input that a gradient is wanted for: the tensor to compute with (it shares memory with the original), and a handle
// of no elements to ask for the gradient by. The handle does not keep the tensor alive, as a leaf of autograd would:
// only what the operator itself saves stays in memory until backward.
struct GradientInput {
  at::Tensor tensor, handle;
};
GradientInput gradient_input(const at::Tensor& tensor);

// d(sum of outputs[i] * grads[i]) / d(input of handle j), undefined where no output depends on it. Histories stay.
std::vector<at::Tensor> input_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& handles,
                                        const std::vector<at::Tensor>& grads);
// Zeros in the shape, type and device of the handle's input.
at::Tensor input_zeros(const at::Tensor& handle);

}  // namespace ortmodule
