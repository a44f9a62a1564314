// "cuda" kernel of ConcatSum (concat_sum.cu): up to four contiguous parts of one type; others are ATen's.
#include <ATen/ops/empty.h>

#include "kernels/cuda_kernel.h"
#include "ops/shape/concat_sum_launch.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", ConcatSum, "cuda", [](const Node& node) -> Kernel {
  return cuda_kernel(node, [wide = node.get_int("wide", 0) != 0](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& first = c.in(0);
    if (!c.wants(0) || !c.wants(1) || c.input_count() > cuda::kConcatParts || !cuda_element(first)) return false;
    cuda::ConcatSumLaunch launch{*cuda_element(first), wide, 0, 0, {}, {}, nullptr, nullptr, nullptr};
    for (size_t i = 0; i < c.input_count(); ++i) {
      const at::Tensor& part = c.in(i);
      if (!cuda_plain(c, part) || part.dim() == 0 || part.scalar_type() != first.scalar_type()) return false;
      if (part.sizes().slice(0, part.dim() - 1) != first.sizes().slice(0, first.dim() - 1)) return false;
      launch.parts[i] = address(part);
      launch.widths[i] = part.size(-1);
      launch.columns += part.size(-1);
    }
    launch.rows = first.numel() / first.size(-1);
    c10::DimVector sizes(first.sizes());
    sizes.back() = launch.columns;
    at::Tensor y = at::empty(sizes, first.options());
    at::Tensor sums = at::empty({launch.columns}, first.options().dtype(wide ? at::kFloat : first.scalar_type()));
    const at::Tensor workspace = cuda_workspace(c, cuda::concat_sum_workspace(launch.rows, launch.columns));
    launch.y = mutable_address(y);
    launch.sums = mutable_address(sums);
    launch.workspace = mutable_address(workspace);
    queue.run("concat_sum", launch);
    c.out(0, std::move(y));
    c.out(1, std::move(sums));
    return true;
  });
});

}  // namespace ortmodule
