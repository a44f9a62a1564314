// "cuda" kernels of Embedding, Gather of whole rows, and their gradients (rows.cu).
//
// The gradients sort the positions, with torch's stable sort, and sum rows in that order: the same bits in every run,
// where torch's own sum on a GPU has others.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda_kernel.h"
#include "kernels/host_values.h"
#include "ops/index/positions.h"
#include "ops/index/row_launch.h"

namespace ortmodule {
namespace {

bool is_constant_scalar(const Node& node, size_t input) {
  const NodeArg* value = node.input(input);
  return value && value->constant() && value->constant()->dims.empty();
}

Kernel make_gather(const Node& node) {
  const bool selects = is_constant_scalar(node, 1);
  return cuda_kernel(node, [selects, given = node.get_int("axis", 0)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &table = c.in(0), &ids = c.in(1);
    if (selects || table.dim() == 0 || positive_axis(given, table.dim(), "Gather") != 0) return false;
    if (!cuda_plain(c, table) || !cuda_plain(c, ids) || ids.scalar_type() != at::kLong) return false;
    c10::DimVector sizes(ids.sizes().begin(), ids.sizes().end());
    sizes.append(table.sizes().begin() + 1, table.sizes().end());
    at::Tensor y = at::empty(sizes, table.options());
    const int64_t row_bytes = table.numel() / table.size(0) * static_cast<int64_t>(table.itemsize());
    queue.run("gather_rows", cuda::GatherRowsLaunch{ids.numel(), row_bytes, table.size(0), address(table), address(ids),
                                                    mutable_address(y)});
    c.out(0, std::move(y));
    return true;
  });
}

// Inputs: dY, positions, the table's sizes on the host, and what is added to, if anything.
bool sum_rows(KernelContext& c, const CudaQueue& queue, c10::IntArrayRef sizes, int64_t skipped) {
  const at::Tensor &dy = c.in(0), &given = c.in(1);
  if (sizes.empty() || !cuda_plain(c, dy) || !cuda_element(dy) || given.device() != c.device()) return false;
  const int64_t count = given.numel(), width = c10::multiply_integers(sizes.slice(1));
  if (width == 0 || dy.numel() != count * width) return false;
  const bool onto = c.has(3);
  if (onto && (!cuda_plain(c, c.in(3)) || c.in(3).sizes() != sizes || c.in(3).scalar_type() != dy.scalar_type()))
    return false;
  const auto [ids, positions] = at::sort(wrap_negative(given, sizes[0]).reshape({-1}), /*stable=*/true, 0, false);
  at::Tensor sums = !onto ? at::zeros(sizes, dy.options()) : c.may_overwrite(3) ? c.in(3) : c.in(3).clone();
  const at::Tensor workspace = cuda_workspace(c, cuda::sum_rows_workspace(count, width));
  queue.run("sum_rows",
            cuda::SumRowsLaunch{*cuda_element(dy), count, width, sizes[0], skipped, address(dy), address(ids),
                                address(positions), mutable_address(sums), mutable_address(workspace)});
  c.out(0, std::move(sums));
  return true;
}

}  // namespace

ORTMODULE_KERNEL("", Gather, "cuda", make_gather);
ORTMODULE_KERNEL("ai.ortmodule", Embedding, "cuda", make_gather);

ORTMODULE_KERNEL("ai.ortmodule", GatherGrad, "cuda", [](const Node& node) -> Kernel {
  const bool selects = is_constant_scalar(node, 1);
  return cuda_kernel(node, [selects, given = node.get_int("axis", 0), sizes = HostInts(node, 2)](
                               KernelContext& c, const CudaQueue& queue) {
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    if (selects || target.empty() || positive_axis(given, static_cast<int64_t>(target.size()), "GatherGrad") != 0)
      return false;
    return sum_rows(c, queue, target, -1);
  });
}).types(kCudaTypes);

ORTMODULE_KERNEL("ai.ortmodule", EmbeddingGrad, "cuda", [](const Node& node) -> Kernel {
  return cuda_kernel(node, [padding = node.get_int("padding_idx", -1), sizes = HostInts(node, 2)](
                               KernelContext& c, const CudaQueue& queue) {
    c10::DimVector storage;
    return sum_rows(c, queue, sizes.read(c, storage), padding);
  });
}).types(kCudaTypes);

}  // namespace ortmodule
