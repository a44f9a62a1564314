// Kernels of Linear and LinearGrad: products on views flattened to two dimensions.
#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/kernel_context.h"
#include "products/matmul_provider.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// `t` itself where it is a matrix, else a view of it, which `view` holds. A vector is one row.
const at::Tensor& as_matrix(const at::Tensor& t, at::Tensor& view) {
  if (t.dim() == 2) return t;
  view = t.dim() > 1 ? t.flatten(0, -2) : t.unsqueeze(0);
  return view;
}

Kernel make_linear(const Node& node) {
  return [constant = ConstantFactor::of(node, 1)](KernelContext& c) {
    c.out(0, linear_product(c.in(0), c.in(1), c.in_or_undefined(2), constant.get()));
  };
}

void linear_grad(KernelContext& c, bool wide) {
  const at::Tensor& dy = c.in(0);
  at::Tensor dy_view, x_view;
  const std::array wanted{c.wants(0), c.wants(1), c.wants(2)};
  LinearGrads grads = linear_grads(as_matrix(dy, dy_view), wanted[1] ? as_matrix(c.in(1), x_view) : at::Tensor(),
                                   wanted[0] ? c.in(2) : at::Tensor(), wanted);
  if (c.wants(0)) {
    if (dy.dim() != 2) {
      c10::DimVector sizes(dy.sizes());
      sizes.back() = grads.dx.size(1);
      grads.dx = grads.dx.view(sizes);
    }
    c.out(0, std::move(grads.dx));
  }
  if (c.wants(1)) c.out(1, wide ? grads.dw.to(at::kFloat) : std::move(grads.dw));
  if (c.wants(2)) c.out(2, std::move(grads.db));
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", Linear, "aten", make_linear);
ORTMODULE_KERNEL("ai.ortmodule", LinearGrad, "aten", [](const Node& node) -> Kernel {
  return [wide = node.get_int("wide", 0) != 0](KernelContext& c) { linear_grad(c, wide); };
});

}  // namespace ortmodule
