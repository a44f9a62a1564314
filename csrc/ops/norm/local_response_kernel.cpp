// ATen kernels of LRN and its gradient.
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Response {
  double alpha, beta, bias;
  int64_t size;

  explicit Response(const Node& node)
      : alpha(node.get_float("alpha", 1e-4)),
        beta(node.get_float("beta", 0.75)),
        bias(node.get_float("bias", 1)),
        size(node.get_int("size", 1)) {}

  // Sums over the window of `before` channels in front of each channel and the rest behind.
  at::Tensor window_sum(const at::Tensor& t, int64_t before) const {
    ORTMODULE_CHECK(t.dim() >= 2 && size >= 1, kRuntime, "[LRN] X should be [N, C, ...] and size positive, got ",
                    t.sizes(), " and ", size);
    std::vector<int64_t> pads(static_cast<size_t>(2 * t.dim() - 2), 0);
    pads[pads.size() - 2] = before;
    pads[pads.size() - 1] = size - 1 - before;
    return at::constant_pad_nd(t, pads).unfold(1, size, 1).sum(-1);
  }
  at::Tensor base(const at::Tensor& x) const {
    return window_sum(x.square(), (size - 1) / 2).mul_(alpha / static_cast<double>(size)).add_(bias);
  }
};

at::Tensor computed(const at::Tensor& t) { return t.to(computed_in(t.scalar_type())); }

}  // namespace

ORTMODULE_KERNEL("", LRN, "aten", [](const Node& node) -> Kernel {
  return [r = Response(node)](KernelContext& c) {
    const at::Tensor x = computed(c.in(0));
    c.out(0, r.base(x).pow_(-r.beta).mul_(x).to(c.in(0).scalar_type()));
  };
});

// With b = bias + alpha / size * sum of squares:
// dx_i = dy_i * b_i^-beta - 2 alpha beta / size * x_i * sum over windows j that hold i of dy_j * x_j * b_j^(-beta - 1).
ORTMODULE_KERNEL("ai.ortmodule", LRNGrad, "aten", [](const Node& node) -> Kernel {
  return [r = Response(node)](KernelContext& c) {
    const at::Tensor dy = computed(c.in(0)), x = computed(c.in(1)), b = r.base(x);
    const at::Tensor direct = b.pow(-r.beta).mul_(dy);
    const at::Tensor shared = r.window_sum(direct.mul(x).div_(b), r.size - 1 - (r.size - 1) / 2);
    const double factor = -2 * r.alpha * r.beta / static_cast<double>(r.size);
    c.out(0, direct.addcmul(shared, x, factor).to(c.in(1).scalar_type()));
  };
});

}  // namespace ortmodule
