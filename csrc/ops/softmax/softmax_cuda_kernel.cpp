// "cuda" kernels of Softmax, LogSoftmax and their gradients (softmax.cu): contiguous tensors, over the last axis. A
// thread reads all that it has of a row before it writes, or each element before that one, so that the result may go
// over the scores, as on the CPU.
#include <ATen/ops/empty_like.h>

#include <limits>

#include "kernels/cuda_kernel.h"
#include "kernels/host_values.h"
#include "ops/softmax/softmax_launch.h"

namespace ortmodule {
namespace {

bool takes(const KernelContext& c, const at::Tensor& x, int64_t axis) {
  return cuda_plain(c, x) && cuda_element(x) && x.dim() > 0 && positive_axis(axis, x.dim(), "Softmax") == x.dim() - 1 &&
         x.size(-1) < std::numeric_limits<int32_t>::max() / 2;
}

at::Tensor target(const KernelContext& c) { return c.may_overwrite(0) ? c.in(0) : at::empty_like(c.in(0)); }

template <bool log>
Kernel make_forward(const Node& node) {
  return cuda_kernel(node, [axis = node.get_int("axis", -1)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& x = c.in(0);
    if (!takes(c, x, axis)) return false;
    at::Tensor y = target(c);
    queue.run("softmax", cuda::SoftmaxLaunch{*cuda_element(x), log, x.numel() / x.size(-1), x.size(-1), address(x),
                                             mutable_address(y)});
    c.out(0, std::move(y));
    return true;
  });
}

template <bool log>
Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [axis = node.get_int("axis", -1)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &dy = c.in(0), &y = c.in(1);
    if (!takes(c, y, axis) || !cuda_plain(c, dy) || dy.sizes() != y.sizes() || dy.scalar_type() != y.scalar_type())
      return false;
    at::Tensor dx = target(c);
    queue.run("softmax_gradient", cuda::SoftmaxGradLaunch{*cuda_element(y), log, y.numel() / y.size(-1), y.size(-1),
                                                          address(dy), address(y), mutable_address(dx)});
    c.out(0, std::move(dx));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("", Softmax, "cuda", make_forward<false>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("", LogSoftmax, "cuda", make_forward<true>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SoftmaxGrad, "cuda", make_gradient<false>).types(kCudaTypes).inplace();
ORTMODULE_KERNEL("ai.ortmodule", LogSoftmaxGrad, "cuda", make_gradient<true>).types(kCudaTypes).inplace();

}  // namespace ortmodule
