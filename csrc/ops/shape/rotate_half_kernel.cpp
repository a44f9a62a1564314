// Kernel of RotateHalf where it is alone: two copies.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", RotateHalf, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t size = x.dim() ? x.size(-1) : 1, half = size / 2;
    ORTMODULE_CHECK(size % 2 == 0, kRuntime, "[RotateHalf] expected rows of even size, got X ", x.sizes());
    at::Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
    at::Tensor first = y.narrow(-1, 0, half);
    at::neg_out(first, x.narrow(-1, half, half));
    y.narrow(-1, half, half).copy_(x.narrow(-1, 0, half));
    c.out(0, std::move(y));
  };
});

}  // namespace ortmodule
