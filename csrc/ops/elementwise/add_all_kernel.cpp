// "aten" kernel of AddAll: tensor by tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", AddAll, "aten", [](const Node& node) -> Kernel {
  return [value = node.get_int("value", 0)](KernelContext& c) {
    for (size_t i = 0; i < c.input_count(); ++i)
      if (c.wants(i)) c.out(i, at::add(c.in(i), value));
  };
});

}  // namespace ortmodule
