#include "kernels/materialized.h"

#include <ATen/ops/zeros.h>

namespace ortmodule {

at::Tensor materialized_copy(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

}  // namespace ortmodule
