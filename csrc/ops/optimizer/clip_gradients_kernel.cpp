// ATen kernel of InplaceClipGradNorm.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernel_context.h"
#include "kernels/sequence_value.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("com.microsoft", InplaceClipGradNorm, "aten", [](const Node& node) -> Kernel {
  return [bound = node.get_float("max_norm", 1)](KernelContext& c) {
    double squares = 0;
    for (const at::Tensor& g : sequence_elements(c.in(0))) {
      const double norm = at::linalg_vector_norm(g.to(at::kDouble)).item<double>();
      squares += norm * norm;
    }
    const double factor = std::min(1.0, bound / (std::sqrt(squares) + 1e-6));
    std::vector<at::Tensor> clipped;
    for (const at::Tensor& g : sequence_elements(c.in(0))) clipped.push_back(at::mul(g, factor));
    c.out(0, make_sequence(std::move(clipped), sequence_element_type(c.in(0))));
  };
});

}  // namespace ortmodule
