// Kernels of batch norm's parts through ATen, on every device and of every type. Ours: batch_statistics.cu.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <c10/util/DimVector.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// x [N, C, ..] in the type that its statistics have, and how numbers per channel broadcast to it.
struct Channels {
  Channels(KernelContext& c, size_t input, size_t first, size_t last) : x(c.in(input)), sizes(x.dim() - 1, 1) {
    ORTMODULE_CHECK(x.dim() >= 2 && x.numel() > 0, kRuntime, "[BatchNorm] x of shape ", x.sizes(),
                    " should have elements, and at least 2 dimensions");
    for (size_t i = first; i <= last; ++i)
      ORTMODULE_CHECK(c.in(i).dim() == 1 && c.in(i).size(0) == x.size(1), kRuntime, "[BatchNorm] x of shape ",
                      x.sizes(), " and input ", i, " of shape ", c.in(i).sizes(),
                      " do not fit: expected one number per channel");
    sizes[0] = x.size(1);
    type = computed_in(x.scalar_type());
    x = x.to(type);
    for (int64_t i = 0; i < x.dim(); ++i)
      if (i != 1) axes.push_back(i);
  }
  at::Tensor wide(const at::Tensor& numbers) const { return numbers.to(type).view(sizes); }
  double count() const { return static_cast<double>(x.numel() / x.size(1)); }

  at::Tensor x;
  c10::DimVector sizes, axes;
  at::ScalarType type;
};

Kernel make_statistics(const Node& node) {
  const double epsilon = node.get_float("epsilon", 1e-5), momentum = node.get_float("momentum", 0.1);
  return [epsilon, momentum](KernelContext& c) {
    const Channels of(c, 0, 1, 4);
    at::Tensor mean = at::mean(of.x, of.axes);
    const at::Tensor apart = of.x.sub(mean.view(of.sizes)), var = at::mean(apart.mul(apart), of.axes);
    at::Tensor invstd = at::rsqrt(var.add(epsilon)), factor = of.wide(c.in(1)).mul(invstd.view(of.sizes));
    const auto moved = [&](size_t i, const at::Tensor& now) {
      return c.in(i).mul(1 - momentum).add_(now.to(c.in(i).scalar_type()), momentum);
    };
    if (c.wants(4)) c.out(4, moved(3, mean));
    if (c.wants(5)) c.out(5, moved(4, var.mul(of.count() / (of.count() - 1))));
    if (c.wants(3)) c.out(3, at::addcmul(of.wide(c.in(2)), mean.view(of.sizes), factor, -1));
    c.out(2, std::move(factor));
    c.out(0, std::move(mean));
    c.out(1, std::move(invstd));
  };
}

void affine(KernelContext& c) {
  const at::Tensor& x = c.in(0);
  c.out(0, at::addcmul(c.in(2), x, c.in(1)).to(x.scalar_type()));
}

void sums(KernelContext& c) {
  const Channels of(c, 1, 2, 4);
  ORTMODULE_CHECK(c.in(0).sizes() == of.x.sizes(), kRuntime, "[BatchNorm] the gradient of shape ", c.in(0).sizes(),
                  " does not fit x of shape ", of.x.sizes());
  at::Tensor dy = c.in(0).to(of.type);
  if (c.has(5)) dy = at::where(at::addcmul(c.in(6), of.x, c.in(5)).gt(0), dy, 0.0);
  const at::Tensor mean = of.wide(c.in(3)), invstd = of.wide(c.in(4));
  const at::Tensor plain = at::sum(dy, of.axes).view(of.sizes);
  const at::Tensor along = at::sum(dy.mul(of.x.sub(mean)), of.axes).view(of.sizes);
  const auto narrow = c.in(2).scalar_type();
  if (c.wants(0)) c.out(0, along.mul(invstd).view({-1}).to(narrow));
  if (c.wants(1)) c.out(1, plain.view({-1}).to(narrow));
  at::Tensor dy_factor = of.wide(c.in(2)).mul(invstd);
  at::Tensor x_factor = dy_factor.mul(invstd).mul_(invstd).mul_(along).mul_(-1 / of.count());
  c.out(4, dy_factor.mul(plain).mul_(-1 / of.count()).sub_(x_factor.mul(mean)));
  c.out(2, std::move(dy_factor));
  c.out(3, std::move(x_factor));
}

void input_gradient(KernelContext& c) {
  const at::Tensor &dy = c.in(0), &x = c.in(1);
  c.out(0, at::addcmul(at::addcmul(c.in(4), x, c.in(3)), dy, c.in(2)).to(x.scalar_type()));
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", BatchNormStatistics, "aten", make_statistics);
ORTMODULE_KERNEL("ai.ortmodule", BatchNormAffine, "aten", [](const Node&) -> Kernel { return affine; });
ORTMODULE_KERNEL("ai.ortmodule", BatchNormSums, "aten", [](const Node&) -> Kernel { return sums; });
ORTMODULE_KERNEL("ai.ortmodule", BatchNormInputGrad, "aten", [](const Node&) -> Kernel { return input_gradient; });

}  // namespace ortmodule
