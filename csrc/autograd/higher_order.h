// Gradients that a session's backward does not give.
//
// It has no history (`create_graph=True`: a gradient penalty, a Hessian, a physical equation), and it does not stop at
// a result from which another one is computed (autograd/result_nodes.h). Where that is asked for, the gradients are
// those of a graph of their own, or the call is run again by PyTorch (graph_transition/higher_order.py); what the call
// was given is kept for that.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ortmodule {

// How a session's calls are run again, and of which graph inputs that needs the caller's tensors.
struct HigherOrder {
  // What is asked of a call: gradients of the trainable inputs, or of the output `of` alone.
  struct Asked {
    std::vector<at::Tensor> dys;  // the outputs' gradients, by position among those that can receive one
    std::vector<char> whole{};    // by the same: it is all that flows on from there; empty: nowhere
    std::optional<size_t> of{};
    std::vector<char> wanted{};  // by trainable input; empty: all are
  };
  // Computes the trainable inputs' gradients as the session has them.
  using Dxs = std::function<std::vector<at::Tensor>()>;
  // Gradients of one call, with history where gradients are enabled; undefined where they are not wanted. They are
  // compared with those of `dxs`, which may be null.
  using Gradients = std::function<std::vector<at::Tensor>(const Asked& asked, const Dxs* dxs)>;
  // What is left of a call's tensors.
  struct Given {
    std::vector<at::Tensor> tensors;  // undefined where one is gone
    // Whether these are all of the graph's inputs, and then, which were written since.
    bool whole = false;
    std::vector<size_t> changed;
    at::Tensor random_state;  // of torch's generator before the forward; undefined where that draws nothing
  };
  // `looked`: for the sake of a result that another is computed from.
  using Repeat = std::function<Gradients(const Given& given, bool looked)>;

  std::vector<size_t> given;
  std::vector<char> written;  // parallel to it: the call overwrites it
  Repeat repeat;
  bool draws = false;
  // Calls have been differentiated again, and more are likely to be: all that they are given is held.
  mutable std::atomic<bool> expected = false;
};

// The caller's tensors of one call, and the random numbers that it is about to draw: the default generator's state.
// It is a copy of some 3 KB, made only for a forward that draws. Those that want a gradient are held, as autograd holds
// what it saved of them; the others live as long as somebody else holds them, so that a step keeps no memory for what
// it most likely never does. Where results are computed from results all are held (`all`): a look at one is likelier,
// and eager's backward holds most of them, too. Where it is expected the graph's other inputs are held as well, and
// what tells whether somebody writes them.
class GivenTensors {
 public:
  GivenTensors(const HigherOrder& higher, const std::vector<at::Tensor>& inputs, bool all);
  HigherOrder::Given lock() const;

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // As a tensor was at the call.
  struct State {
    const void* data;
    uint32_t version;
  };
  static State state_of(const at::Tensor& tensor);

  std::vector<at::Tensor> held_;
  std::vector<Weak> watched_;  // parallel to `held_`; empty where all are held
  std::vector<State> states_;  // parallel to `held_` where these are all; else empty
  at::Generator generator_;
};

}  // namespace ortmodule
