// Kernel of NonNegative.
#include "base/typed_error.h"
#include "kernels/kernel_context.h"
#include "ops/index/positions.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("ai.ortmodule", NonNegative, "aten", [](const Node& node) -> Kernel {
  return [name = node.describe()](KernelContext& c) {
    const at::Tensor& positions = c.in(0);
    ORTMODULE_CHECK_INDEX(!positions.is_cpu() || !has_negative(as_int64(positions)),
                          "[NonNegative] index out of range: a position is negative (", name, ")");
    c.out(0, positions);
  };
});

}  // namespace
}  // namespace ortmodule
