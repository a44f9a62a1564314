#include "kernels/autograd_scope.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "base/status.h"
#include "kernels/materialized.h"

namespace ortmodule {
namespace {

// The thread's key sets with autograd's keys no longer excluded. Inference mode excludes them too, and counts.
c10::impl::ForceDispatchKeyGuard with_autograd() {
  const auto now = c10::impl::tls_local_dispatch_key_set();
  return c10::impl::ForceDispatchKeyGuard(now.included_ | c10::default_included_set,
                                          now.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
}

// Where the history of an input ends. The engine stops here and hands over what arrives.
struct InputEdge : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override { return std::move(grads); }
};

// PyTorch's pointer to a node is std::shared_ptr up to some version and c10::intrusive_ptr from then on.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Pointer, typename NodeType>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<NodeType>();
  else
    return c10::make_intrusive<NodeType>();
}

}  // namespace

struct AutogradScope::Guards {
  c10::impl::ForceDispatchKeyGuard keys = with_autograd();
  at::AutoGradMode grad_mode{true};
};

AutogradScope::AutogradScope() : guards_(std::make_unique<Guards>()) {}
AutogradScope::~AutogradScope() = default;

GradientInput gradient_input(const at::Tensor& tensor) {
  const NodePointer edge = make_node<NodePointer, InputEdge>();
  GradientInput input{tensor.detach(), at::empty({0}, tensor.options())};
  torch::autograd::set_history(input.tensor, edge);
  torch::autograd::impl::set_gradient_edge(input.handle, torch::autograd::Edge(edge, 0));
  return input;
}

std::vector<at::Tensor> input_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& handles,
                                        const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> found = torch::autograd::grad(outputs, handles, grads, /*retain_graph=*/true,
                                                        /*create_graph=*/false, /*allow_unused=*/true);
  for (at::Tensor& gradient : found) {
    const bool of_a_class = gradient.defined() && gradient.key_set().has(c10::DispatchKey::Python);
    ORTMODULE_CHECK(!of_a_class, kRuntime, "a gradient is a tensor of a class in Python, whose memory it is not");
    gradient = materialized(gradient);
  }
  return found;
}

at::Tensor input_zeros(const at::Tensor& handle) { return handle.grad_fn()->input_metadata(0).zeros_like(); }

}  // namespace ortmodule
