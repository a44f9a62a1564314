// ATen kernels of the smooth activations; Gelu's are in gelu_kernel.cpp. Gradient kernels write over dY where it is
// theirs to take.
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

#include "ops/elementwise/unary_kernel.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("ai.ortmodule", Silu, "aten", unary_kernel<at::silu, at::silu_>).inplace();

ORTMODULE_KERNEL("ai.ortmodule", SiluGrad, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel([](at::Tensor& t, KernelContext& c) { at::silu_backward_out(t, t, c.in(1)); },
                            [](KernelContext& c) { return at::silu_backward(c.in(0), c.in(1)); });
}).inplace();

ORTMODULE_KERNEL("com.microsoft", QuickGelu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1.702);
  return [alpha](KernelContext& c) {
    at::Tensor gate = at::mul(c.in(0), alpha);
    gate.sigmoid_();
    c.out(0, gate.mul_(c.in(0)));
  };
});

// With silu's derivative s': d/dx x sigmoid(alpha x) = s'(alpha x).
ORTMODULE_KERNEL("ai.ortmodule", QuickGeluGrad, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1.702);
  return [alpha](KernelContext& c) { c.out(0, at::silu_backward(c.in(0), at::mul(c.in(1), alpha))); };
});

ORTMODULE_KERNEL("", Mish, "aten", unary_kernel<at::mish, at::mish_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", MishGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::mish_backward(c.in(0), c.in(1))); };
});

ORTMODULE_KERNEL("", Tanh, "aten", unary_kernel<at::tanh, at::tanh_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", TanhGrad, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel([](at::Tensor& t, KernelContext& c) { at::tanh_backward_out(t, t, c.in(1)); },
                            [](KernelContext& c) { return at::tanh_backward(c.in(0), c.in(1)); });
}).inplace();

ORTMODULE_KERNEL("", Sigmoid, "aten", unary_kernel<at::sigmoid, at::sigmoid_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SigmoidGrad, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel([](at::Tensor& t, KernelContext& c) { at::sigmoid_backward_out(t, t, c.in(1)); },
                            [](KernelContext& c) { return at::sigmoid_backward(c.in(0), c.in(1)); });
}).inplace();

ORTMODULE_KERNEL("", Softplus, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::softplus(c.in(0), 1, 20)); };
});
ORTMODULE_KERNEL("ai.ortmodule", SoftplusGrad, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel([](at::Tensor& t, KernelContext& c) { at::softplus_backward_out(t, t, c.in(1), 1, 20); },
                            [](KernelContext& c) { return at::softplus_backward(c.in(0), c.in(1), 1, 20); });
}).inplace();

}  // namespace
}  // namespace ortmodule
