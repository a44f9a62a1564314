// "cuda" kernel of AddAll (add_all.cu): contiguous tensors of int64; others are ATen's.
#include <ATen/ops/empty_like.h>

#include "kernels/cuda_kernel.h"
#include "ops/elementwise/add_all_launch.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", AddAll, "cuda", [](const Node& node) -> Kernel {
  return cuda_kernel(node, [value = node.get_int("value", 0)](KernelContext& c, const CudaQueue& queue) {
    for (size_t i = 0; i < c.input_count(); ++i)
      if (!cuda_plain(c, c.in(i)) || c.in(i).scalar_type() != at::kLong) return false;
    std::vector<const void*> from;
    std::vector<void*> made;
    std::vector<int64_t> elements;
    for (size_t i = 0; i < c.input_count(); ++i) {
      if (!c.wants(i)) continue;
      at::Tensor y = at::empty_like(c.in(i));
      from.push_back(address(c.in(i)));
      made.push_back(mutable_address(y));
      elements.push_back(y.numel());
      c.out(i, std::move(y));
    }
    queue.run("add_all",
              cuda::AddAllLaunch{static_cast<int64_t>(from.size()), value, from.data(), made.data(), elements.data()});
    return true;
  });
});

}  // namespace ortmodule
