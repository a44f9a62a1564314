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

// The tensor without history, asking for a gradient. Shares memory.
at::Tensor as_leaf(const at::Tensor& tensor);

// d(sum of outputs[i] * grads[i]) / d(leaves); undefined for a leaf that no output depends on. Histories stay usable.
std::vector<at::Tensor> leaf_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves,
                                       const std::vector<at::Tensor>& grads);

}  // namespace ortmodule
