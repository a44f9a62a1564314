// "cuda" kernel of LinearGrad where the weight's gradient is a float of 16-bit factors: the product writes its sums as
// they are, so that no pass narrows and widens them. All else is the "aten" kernel's.
#include <ATen/ops/mm.h>

#include "kernels/cuda_kernel.h"

namespace ortmodule {
namespace {

at::Tensor as_matrix(const at::Tensor& t) { return t.dim() == 2 ? t : t.reshape({-1, t.size(-1)}); }

Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [wide = node.get_int("wide", 0) != 0](KernelContext& c, const CudaQueue&) {
    const at::Tensor& dy = c.in(0);
    if (!wide || !c.wants(1) || c.wants(2) || dy.dim() < 2 || dy.numel() == 0 || dy.device() != c.device())
      return false;
    if (dy.scalar_type() != at::kHalf && dy.scalar_type() != at::kBFloat16) return false;
    const at::Tensor rows = as_matrix(dy);
    at::Tensor dw = at::mm(rows.t(), as_matrix(c.in(1)), at::kFloat);
    if (c.wants(0)) {
      const at::Tensor& w = c.in(2);
      c10::DimVector sizes(dy.sizes());
      sizes.back() = w.size(1);
      c.out(0, at::mm(rows, w).view(sizes));
    }
    c.out(1, std::move(dw));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", LinearGrad, "cuda", make_gradient);

}  // namespace ortmodule
