// ATen kernels of the further activation units.
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/where.h>

#include "base/status.h"
#include "ops/elementwise/unary_kernel.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Celu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  ORTMODULE_CHECK_GRAPH(alpha != 0, "[Celu] alpha should not be zero (", node.describe(), ")");
  return overwriting_kernel([alpha](at::Tensor& t, KernelContext&) { at::elu_(t, alpha, 1, 1 / alpha); },
                            [alpha](KernelContext& c) { return at::elu(c.in(0), alpha, 1, 1 / alpha); });
}).inplace();

ORTMODULE_KERNEL("", Selu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1.67326319217681884765625);
  const double gamma = node.get_float("gamma", 1.05070102214813232421875);
  return overwriting_kernel([=](at::Tensor& t, KernelContext&) { at::elu_(t, alpha, gamma, 1); },
                            [=](KernelContext& c) { return at::elu(c.in(0), alpha, gamma, 1); });
}).inplace();

ORTMODULE_KERNEL("ai.ortmodule", ScaledEluGrad, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1), scale = node.get_float("scale", 1),
               input_scale = node.get_float("input_scale", 1);
  return [=](KernelContext& c) { c.out(0, at::elu_backward(c.in(0), alpha, scale, input_scale, false, c.in(1))); };
});

ORTMODULE_KERNEL("", Softsign, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::div(c.in(0), at::abs(c.in(0)).add_(1))); };
});

ORTMODULE_KERNEL("", ThresholdedRelu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  return overwriting_kernel([alpha](at::Tensor& t, KernelContext&) { at::threshold_(t, alpha, 0); },
                            [alpha](KernelContext& c) { return at::threshold(c.in(0), alpha, 0); });
}).inplace();

ORTMODULE_KERNEL("", Shrink, "aten", [](const Node& node) -> Kernel {
  const double lambd = node.get_float("lambd", 0.5), bias = node.get_float("bias", 0);
  return [lambd, bias](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const at::Tensor below = at::add(x, bias).to(x.scalar_type()), above = at::sub(x, bias).to(x.scalar_type());
    const at::Tensor upper = at::where(at::gt(x, lambd), above, at::Scalar(0)).to(x.scalar_type());
    c.out(0, at::where(at::lt(x, -lambd), below, upper));
  };
});

ORTMODULE_KERNEL("", PRelu, "aten", [](const Node& node) -> Kernel {
  return [name = node.describe()](KernelContext& c) {
    const at::Tensor &x = c.in(0), &slope = c.in(1);
    const at::Tensor scaled = at::mul(x, slope);
    ORTMODULE_CHECK(scaled.sizes() == x.sizes(), kRuntime, "[PRelu] slope of shape ", slope.sizes(),
                    " does not broadcast to ", x.sizes(), " (", name, ")");
    c.out(0, at::where(at::gt(x, 0), x, scaled));
  };
});

ORTMODULE_KERNEL("", Swish, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  return [alpha](KernelContext& c) {
    if (alpha == 1) return c.out(0, at::silu(c.in(0)));
    at::Tensor gate = at::mul(c.in(0), alpha);
    gate.sigmoid_();
    c.out(0, gate.mul_(c.in(0)));
  };
});

ORTMODULE_KERNEL("", SwiGLU, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  return [alpha, name = node.describe()](KernelContext& c) {
    const at::Tensor &a = c.in(0), &b = c.in(1);
    ORTMODULE_CHECK(a.sizes() == b.sizes(), kRuntime, "[SwiGLU] A has shape ", a.sizes(), ", B ", b.sizes(), " (", name,
                    ")");
    at::Tensor gate = alpha == 1 ? at::silu(a) : at::mul(a, alpha).sigmoid_().mul_(a);
    c.out(0, gate.mul_(b));
  };
});

}  // namespace
}  // namespace ortmodule
