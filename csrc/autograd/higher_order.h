// Gradients that the engine's backward does not give, as PyTorch computes them.
//
// The engine's backward has no history (`create_graph=True`: a gradient penalty, a Hessian, a physical equation), and
// it does not stop at a result from which another one is computed (autograd/result_nodes.h). Where that is asked for,
// the call is run again by PyTorch (graph_transition/higher_order.py); what the call was given is kept for that.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ortmodule {

// How a session's calls are run again, and of which graph inputs that needs the caller's tensors.
struct HigherOrder {
  // Gradients through one call that was run again, with history where gradients are enabled: of the trainable inputs,
  // or of the output `of` alone. `dys`: the outputs' gradients, by position among those that can receive one; where
  // `whole` is true they are what flows on from there, whatever comes through other outputs (empty: nowhere).
  // `dxs`: the trainable inputs' gradients as the engine has them, to be compared; null: not known.
  using Gradients =
      std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& dys, const std::vector<char>& whole,
                                            std::optional<size_t> of, const std::vector<at::Tensor>* dxs)>;
  // From the call's tensors (undefined where one is gone) and the state that torch's generator had before the forward
  // (undefined where that draws nothing). `looked`: for the sake of a result that another is computed from.
  using Repeat =
      std::function<Gradients(const std::vector<at::Tensor>& given, const at::Tensor& random_state, bool looked)>;

  std::vector<size_t> given;
  std::vector<char> written;  // parallel to it: the call overwrites it
  Repeat repeat;
  bool draws = false;
};

// The caller's tensors of one call, and the random numbers that it is about to draw: the default generator's state.
// It is a copy of some 3 KB, made only for a forward that draws. Those that want a gradient are held, as autograd holds
// what it saved of them; the others live as long as somebody else holds them, so that a step keeps no memory for what
// it most likely never does. Where results are computed from results all are held (`all`): a look at one is likelier,
// and eager's backward holds most of them, too.
class GivenTensors {
 public:
  GivenTensors(const HigherOrder& higher, const std::vector<at::Tensor>& inputs, bool all);
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
