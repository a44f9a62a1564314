// ATen kernels of CumProd and its gradient, which must be right around zeros: autograd's is.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/ones_like.h>

#include "ops/host_values.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"
#include "ops/recomputed_gradient.h"

namespace ortmodule {
namespace {

struct CumProd {
  bool exclusive, reverse;
  HostInts axis;

  CumProd(const Node& node, size_t slot)
      : exclusive(node.get_int("exclusive", 0) != 0), reverse(node.get_int("reverse", 0) != 0), axis(node, slot) {}

  at::Tensor operator()(const KernelContext& c, const at::Tensor& given) const {
    const int64_t along = positive_axis(axis.value(c, 0), given.dim(), "CumProd");
    at::Tensor x = reverse ? given.flip(along) : given;
    if (exclusive && x.size(along) > 0)
      x = at::cat({at::ones_like(x.narrow(along, 0, 1)), x.narrow(along, 0, x.size(along) - 1)}, along);
    const at::Tensor y = at::cumprod(x, along, given.scalar_type());
    return reverse ? y.flip(along) : y;
  }
};

ORTMODULE_KERNEL("", CumProd, "aten", [](const Node& node) -> Kernel {
  return [product = CumProd(node, 1)](KernelContext& c) { c.out(0, product(c, c.in(0))); };
});
ORTMODULE_KERNEL("ai.ortmodule", CumProdGrad, "aten", [](const Node& node) -> Kernel {
  return [product = CumProd(node, 2)](KernelContext& c) {
    recomputed_gradient(c, {c.in(1)}, {0}, [&](const std::vector<at::Tensor>& v) { return product(c, v[0]); });
  };
});

}  // namespace
}  // namespace ortmodule
