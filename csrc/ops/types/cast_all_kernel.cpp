// "aten" kernel of CastAll: tensor by tensor.
#include <ATen/core/Tensor.h>

#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", CastAll, "aten", [](const Node& node) -> Kernel {
  const at::ScalarType to = to_scalar_type(static_cast<DType>(node.get_int("to", 0)));
  return [to](KernelContext& c) {
    for (size_t i = 0; i < c.input_count(); ++i)
      if (c.wants(i)) c.out(i, c.in(i).to(to, /*non_blocking=*/false, /*copy=*/true));
  };
});

}  // namespace ortmodule
