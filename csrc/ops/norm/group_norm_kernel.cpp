// Kernels of GroupNormalization, InstanceNormalization and their gradient.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Extent {
  int64_t batch, channels, inner, groups;
  Extent(const at::Tensor& x, int64_t num_groups)
      : batch(x.size(0)), channels(x.size(1)), inner(1), groups(num_groups > 0 ? num_groups : x.size(1)) {
    for (int64_t i = 2; i < x.dim(); ++i) inner *= x.size(i);
  }
};

// ATen's kernels read rows and parameters as if they were dense; those of devices know no other order than row by row.
at::MemoryFormat order_of(const at::Tensor& t) {
  return t.is_cpu() ? t.suggest_memory_format() : at::MemoryFormat::Contiguous;
}
at::Tensor dense(const at::Tensor& t) { return t.contiguous(order_of(t)); }
at::Tensor to_type(const at::Tensor& t, at::ScalarType type) { return t.scalar_type() == type ? t : t.to(type); }

Kernel make_group_norm(const Node& node) {
  const int64_t groups = node.get_int("num_groups", 0);
  const double epsilon = node.get_float("epsilon", 1e-5);
  return [groups, epsilon](KernelContext& c) {
    const at::Tensor x = dense(c.in(0));
    const Extent e(x, groups);
    auto [y, mean, rstd] = at::native_group_norm(x, c.in(1).contiguous(), c.in(2).contiguous(), e.batch, e.channels,
                                                 e.inner, e.groups, epsilon);
    c.out(0, std::move(y));
    const auto type = computed_in(x.scalar_type());
    if (c.wants(1)) c.out(1, to_type(mean, type));
    if (c.wants(2)) c.out(2, to_type(rstd, type));
  };
}

Kernel make_group_norm_grad(const Node& node) {
  const int64_t groups = node.get_int("num_groups", 0);
  return [groups](KernelContext& c) {
    const at::Tensor x = dense(c.in(1));
    const at::Tensor dy = c.in(0).contiguous(order_of(x));
    const at::Tensor scale = c.in(4).contiguous();
    const Extent e(x, groups);
    if (x.numel() == 0) {
      // ATen divides by the number of elements.
      c.out(0, at::empty_like(x));
      if (c.wants(1)) c.out(1, at::zeros_like(scale));
      if (c.wants(2)) c.out(2, at::zeros_like(scale));
      return;
    }
    auto [dx, dscale, dbias] = at::native_group_norm_backward(
        dy, x, to_type(c.in(2), scale.scalar_type()), to_type(c.in(3), scale.scalar_type()), scale, e.batch, e.channels,
        e.inner, e.groups, {c.wants(0), c.wants(1), c.wants(2)});
    c.out(0, std::move(dx));
    c.out(1, std::move(dscale));
    c.out(2, std::move(dbias));
  };
}

}  // namespace

ORTMODULE_KERNEL("", GroupNormalization, "aten", make_group_norm);
ORTMODULE_KERNEL("", InstanceNormalization, "aten", make_group_norm);
ORTMODULE_KERNEL("ai.ortmodule", GroupNormalizationGrad, "aten", make_group_norm_grad);

}  // namespace ortmodule
