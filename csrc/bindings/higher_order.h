// Gradients that are differentiated again (`create_graph=True`): a gradient penalty, a Hessian, a physical equation.
//
// The engine's backward has no history. Where one is asked for, the call is run again by PyTorch, whose gradients have
// it (graph_transition/higher_order.py); what the call was given is kept for that.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace ortmodule {

// How a session's gradients are computed with history, and of which graph inputs that needs the caller's tensors.
struct HigherOrder {
  // The gradients of the trainable inputs, with history, from the call's tensors (undefined where one is gone), the
  // outputs' gradients, the trainable inputs' gradients as the engine has them, and the state that torch's generator
  // had before the forward (undefined where that draws nothing).
  using Gradients =
      std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& dys,
                                            const std::vector<at::Tensor>& dxs, const at::Tensor& random_state)>;

  std::vector<size_t> given;
  Gradients gradients;
  bool draws = false;
};

// The caller's tensors of one call, and the random numbers that it is about to draw: the default generator's state.
// It is a copy of some 3 KB, made only for a forward that draws. Those that want a gradient are held, as autograd holds
// what it saved of them; the others live as long as somebody else holds them, so that a step keeps no memory for what
// it most likely never does.
class GivenTensors {
 public:
  GivenTensors(const HigherOrder& higher, const std::vector<at::Tensor>& inputs);
  // Undefined where a tensor is gone.
  std::vector<at::Tensor> lock() const;
  at::Tensor random_state() const { return generator_.defined() ? generator_.get_state() : at::Tensor(); }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<at::Tensor> held_;
  std::vector<Weak> watched_;  // parallel to `held_`
  at::Generator generator_;
};

}  // namespace ortmodule
