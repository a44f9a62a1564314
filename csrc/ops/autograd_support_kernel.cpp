#include "ops/autograd_support.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

namespace ortmodule {
namespace {

// The thread's key sets with autograd's keys no longer excluded. Inference mode excludes them too, and counts.
c10::impl::ForceDispatchKeyGuard with_autograd() {
  const auto now = c10::impl::tls_local_dispatch_key_set();
  return c10::impl::ForceDispatchKeyGuard(now.included_ | c10::default_included_set,
                                          now.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
}

}  // namespace

struct AutogradScope::Guards {
  c10::impl::ForceDispatchKeyGuard keys = with_autograd();
  at::AutoGradMode grad_mode{true};
};

AutogradScope::AutogradScope() : guards_(std::make_unique<Guards>()) {}
AutogradScope::~AutogradScope() = default;

at::Tensor as_leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(true); }

std::vector<at::Tensor> leaf_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves,
                                       const std::vector<at::Tensor>& grads) {
  return torch::autograd::grad(outputs, leaves, grads, /*retain_graph=*/true, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace ortmodule
