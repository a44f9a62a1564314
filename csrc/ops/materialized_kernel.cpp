#include "ops/materialized.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>

namespace ortmodule {

at::Tensor materialized(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kLazy(
      {c10::DispatchKey::Negative, c10::DispatchKey::Conjugate, c10::DispatchKey::ZeroTensor});
  if (!tensor.defined() || !tensor.key_set().has_any(kLazy)) return tensor;
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

}  // namespace ortmodule
