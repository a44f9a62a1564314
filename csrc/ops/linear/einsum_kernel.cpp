// Kernel of Einsum.
#include <ATen/core/Tensor.h>
#include <ATen/ops/einsum.h>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("", Einsum, "aten", [](const Node& node) -> Kernel {
  return [equation = node.get_string("equation", "")](KernelContext& c) {
    std::vector<at::Tensor> inputs;
    inputs.reserve(c.input_count());
    for (size_t i = 0; i < c.input_count(); ++i) inputs.push_back(c.in(i));
    c.out(0, at::einsum(equation, inputs));
  };
});

}  // namespace ortmodule
