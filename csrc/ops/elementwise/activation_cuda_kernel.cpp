// "cuda" kernels of Gelu, Silu, QuickGelu, Tanh, Sigmoid and their gradients, and of com.microsoft's Gelu with a bias
// (activation.cu): contiguous tensors.
#include <ATen/ops/empty_like.h>

#include "kernels/cuda_kernel.h"
#include "ops/elementwise/activation_launch.h"

namespace ortmodule {
namespace {

using cuda::Activation;

Activation kind_of(const Node& node, Activation kind) {
  return kind == Activation::kGelu && node.get_string("approximate", "none") == "tanh" ? Activation::kGeluTanh : kind;
}

at::Tensor target(const KernelContext& c) { return c.may_overwrite(0) ? c.in(0) : at::empty_like(c.in(0)); }

template <Activation named>
Kernel make(const Node& node) {
  return cuda_kernel(node, [kind = kind_of(node, named), alpha = static_cast<float>(node.get_float("alpha", 1.702))](
                               KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& x = c.in(0);
    if (!cuda_plain(c, x) || !cuda_element(x)) return false;
    at::Tensor y = target(c);
    queue.run("activation",
              cuda::ActivationLaunch{*cuda_element(x), kind, x.numel(), alpha, address(x), mutable_address(y)});
    c.out(0, std::move(y));
    return true;
  });
}

// FastGelu without a bias is a plain one.
template <Activation kind>
Kernel make_biased(const Node& node) {
  return cuda_kernel(node, [](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &x = c.in(0), bias = c.in_or_undefined(1);
    if (!cuda_plain(c, x) || !cuda_element(x)) return false;
    if (bias.defined() && (!cuda_plain(c, bias) || bias.scalar_type() != x.scalar_type() || bias.dim() != 1 ||
                           x.dim() == 0 || bias.size(0) != x.size(-1)))
      return false;
    at::Tensor y = target(c);
    if (bias.defined())
      queue.run("biased_activation", cuda::BiasedActivationLaunch{*cuda_element(x), kind, x.numel(), bias.numel(),
                                                                  address(x), address(bias), mutable_address(y)});
    else
      queue.run("activation",
                cuda::ActivationLaunch{*cuda_element(x), kind, x.numel(), 0, address(x), mutable_address(y)});
    c.out(0, std::move(y));
    return true;
  });
}

template <Activation named>
Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [kind = kind_of(node, named), alpha = static_cast<float>(node.get_float("alpha", 1.702))](
                               KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &dy = c.in(0), &saved = c.in(1);
    if (!cuda_plain(c, dy) || !cuda_element(dy) || !cuda_plain(c, saved) || saved.sizes() != dy.sizes() ||
        saved.scalar_type() != dy.scalar_type())
      return false;
    at::Tensor dx = target(c);
    queue.run("activation_gradient", cuda::ActivationGradLaunch{*cuda_element(dy), kind, dy.numel(), alpha, address(dy),
                                                                address(saved), mutable_address(dx)});
    c.out(0, std::move(dx));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("", Gelu, "cuda", make<Activation::kGelu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", GeluGrad, "cuda", make_gradient<Activation::kGelu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Silu, "cuda", make<Activation::kSilu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SiluGrad, "cuda", make_gradient<Activation::kSilu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("com.microsoft", QuickGelu, "cuda", make<Activation::kQuickGelu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", QuickGeluGrad, "cuda", make_gradient<Activation::kQuickGelu>)
    .types(kCudaTypes)
    .inplace();
ORTMODULE_KERNEL("com.microsoft", Gelu, "cuda", make_biased<Activation::kGelu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("com.microsoft", FastGelu, "cuda", make_biased<Activation::kGeluTanh>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("com.microsoft", BiasGelu, "cuda", make_biased<Activation::kGelu>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("", Tanh, "cuda", make<Activation::kTanh>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", TanhGrad, "cuda", make_gradient<Activation::kTanh>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("", Sigmoid, "cuda", make<Activation::kSigmoid>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SigmoidGrad, "cuda", make_gradient<Activation::kSigmoid>).types(kCudaTypes).inplace();

}  // namespace ortmodule
