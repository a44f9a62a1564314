// "cuda" kernel of CastAll (cast_all.cu): contiguous tensors of one type; others are ATen's.
#include <ATen/ops/empty_like.h>

#include "kernels/aten_bridge.h"
#include "kernels/cuda_kernel.h"
#include "ops/types/cast_all_launch.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", CastAll, "cuda", [](const Node& node) -> Kernel {
  const at::ScalarType to = to_scalar_type(static_cast<DType>(node.get_int("to", 0)));
  return cuda_kernel(node, [to](KernelContext& c, const CudaQueue& queue) {
    const auto source = cuda_element(c.in(0)), target = cuda_element(to);
    if (!source || !target) return false;
    for (size_t i = 0; i < c.input_count(); ++i)
      if (!cuda_plain(c, c.in(i)) || c.in(i).scalar_type() != c.in(0).scalar_type()) return false;
    std::vector<const void*> from;
    std::vector<void*> made;
    std::vector<int64_t> elements;
    for (size_t i = 0; i < c.input_count(); ++i) {
      if (!c.wants(i)) continue;
      at::Tensor y = at::empty_like(c.in(i), at::TensorOptions(to));
      from.push_back(address(c.in(i)));
      made.push_back(mutable_address(y));
      elements.push_back(y.numel());
      c.out(i, std::move(y));
    }
    queue.run("cast_all", cuda::CastAllLaunch{*source, *target, static_cast<int64_t>(from.size()), from.data(),
                                              made.data(), elements.data()});
    return true;
  });
});

}  // namespace ortmodule
