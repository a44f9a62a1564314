// ATen kernels of the bitwise operators.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/where.h>

#include <limits>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

template <at::Tensor (*compute)(const at::Tensor&, const at::Tensor&)>
Kernel binary(const Node&) {
  return [](KernelContext& c) { c.out(0, compute(c.in(0), c.in(1))); };
}

ORTMODULE_KERNEL("", BitwiseAnd, "aten", binary<at::bitwise_and>);
ORTMODULE_KERNEL("", BitwiseOr, "aten", binary<at::bitwise_or>);
ORTMODULE_KERNEL("", BitwiseXor, "aten", binary<at::bitwise_xor>);
ORTMODULE_KERNEL("", BitwiseNot, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, at::bitwise_not(c.in(0))); }; });

at::Tensor as_int64(const at::Tensor& t) {
  return t.scalar_type() == at::kUInt64 ? t.view(at::kLong) : t.to(at::kLong);
}

// Elements in int64, where ATen shifts by any amount as ONNX does; the way back cuts what left the type's width.
ORTMODULE_KERNEL("", BitShift, "aten", [](const Node& node) -> Kernel {
  const std::string direction = node.get_string("direction", "");
  ORTMODULE_CHECK_GRAPH(direction == "LEFT" || direction == "RIGHT",
                        "[BitShift] direction should be LEFT or RIGHT, got '", direction, "' (", node.describe(), ")");
  return [left = direction == "LEFT"](KernelContext& c) {
    const at::ScalarType type = c.in(0).scalar_type();
    const at::Tensor x = as_int64(c.in(0)), by = as_int64(c.in(1));
    if (type != at::kUInt64) {
      c.out(0, (left ? at::bitwise_left_shift(x, by) : at::bitwise_right_shift(x, by)).to(type));
      return;
    }
    if (left) {
      c.out(0, at::bitwise_left_shift(x, by).view(type));
      return;
    }
    // int64 would shift its sign in: the first step takes it away.
    const at::Tensor halved = at::bitwise_and(at::bitwise_right_shift(x, 1), std::numeric_limits<int64_t>::max());
    const at::Tensor shifted = at::bitwise_right_shift(halved, at::where(by < 0, 64, by - 1));
    c.out(0, at::where(by == 0, x, shifted).view(type));
  };
}).rare_types(RareTypes::kAsIs);

}  // namespace
}  // namespace ortmodule
