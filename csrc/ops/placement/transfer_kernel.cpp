// Copies that the device does in its own time: whoever reads one waits for it (plan/streams.h).
#include <ATen/ops/empty_like.h>

#include "kernels/kernel_context.h"
#include "kernels/sequence_value.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// From page-locked memory a GPU copies without the host; torch's allocator keeps such memory.
at::Tensor moved(const at::Tensor& x, c10::Device to) {
  if (!x.defined()) return x;
  if (holds_sequence(x)) {
    std::vector<at::Tensor> elements;
    for (const at::Tensor& element : sequence_elements(x)) elements.push_back(moved(element, to));
    return make_sequence(std::move(elements), sequence_element_type(x));
  }
  if (x.device() == to) return x;
  at::Tensor y = at::empty_like(x, x.options().device(to).pinned_memory(to.is_cpu() && x.is_cuda()));
  return y.copy_(x, /*non_blocking=*/true);
}

ORTMODULE_KERNEL("ai.ortmodule", MemcpyToHost, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, moved(c.in(0), c10::kCPU)); };
}).rare_types(RareTypes::kAsIs);

ORTMODULE_KERNEL("ai.ortmodule", MemcpyToDevice, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, moved(c.in(0), c.device())); };
}).rare_types(RareTypes::kAsIs);

}  // namespace
}  // namespace ortmodule
