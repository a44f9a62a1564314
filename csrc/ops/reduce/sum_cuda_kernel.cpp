// "cuda" kernels of ReduceSum, ReduceMean and ReduceSumTo (sum.cu): of contiguous tensors, over the first axes or the
// last.
#include <ATen/ops/empty.h>

#include <numeric>

#include "kernels/cuda_kernel.h"
#include "kernels/host_values.h"
#include "ops/reduce/sum_launch.h"

namespace ortmodule {
namespace {

// x as a matrix whose rows, or whose columns, are added; none where the axes are neither its first nor its last.
struct Matrix {
  bool over_rows;
  int64_t rows, columns;
};

std::optional<Matrix> matrix_of(c10::IntArrayRef sizes, const std::vector<bool>& reduced) {
  int64_t product[3] = {1, 1, 1};  // kept, added, kept; or added, kept with the first of them 1
  int part = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (reduced[i] != (part == 1) && ++part > 2) return std::nullopt;
    product[part] *= sizes[i];
  }
  if (product[2] == 1) return Matrix{false, product[0], product[1]};
  if (product[0] == 1) return Matrix{true, product[1], product[2]};
  return std::nullopt;
}

bool run_sum(KernelContext& c, const CudaQueue& queue, const Matrix& m, c10::IntArrayRef sizes, float scale) {
  const at::Tensor& x = c.in(0);
  const int64_t floats = cuda::sum_workspace(m.over_rows, m.rows, m.columns);
  if (m.columns > cuda::kSumPart * 65535) return false;  // parts of a row, in one axis of the grid
  at::Tensor y = at::empty(sizes, x.options());
  const at::Tensor workspace = floats ? cuda_workspace(c, floats) : at::Tensor();
  queue.run("sum", cuda::SumLaunch{*cuda_element(x), m.over_rows, m.rows, m.columns, scale, address(x),
                                   mutable_address(y), mutable_address(workspace)});
  c.out(0, std::move(y));
  return true;
}

template <bool mean>
Kernel make_reduction(const Node& node) {
  const bool keep = node.get_int("keepdims", 1) != 0, noop = node.get_int("noop_with_empty_axes", 0) != 0;
  return cuda_kernel(node, [axes = HostInts(node, 1), keep, noop](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& x = c.in(0);
    c10::DimVector storage;
    const c10::IntArrayRef list = axes.read(c, storage);
    if (!cuda_plain(c, x) || !cuda_element(x) || (list.empty() && noop)) return false;
    std::vector<bool> reduced(static_cast<size_t>(x.dim()), list.empty());
    for (const int64_t axis : list) reduced[static_cast<size_t>(positive_axis(axis, x.dim(), "ReduceSum"))] = true;
    const auto m = matrix_of(x.sizes(), reduced);
    if (!m || (mean && m->over_rows)) return false;
    c10::DimVector sizes;
    for (int64_t i = 0; i < x.dim(); ++i) {
      if (!reduced[static_cast<size_t>(i)])
        sizes.push_back(x.size(i));
      else if (keep)
        sizes.push_back(1);
    }
    return run_sum(c, queue, *m, sizes, mean ? 1.0f / static_cast<float>(m->columns) : 1.0f);
  });
}

}  // namespace

ORTMODULE_KERNEL("", ReduceSum, "cuda", make_reduction<false>).types(kCudaTypes);
ORTMODULE_KERNEL("", ReduceMean, "cuda", make_reduction<true>).types(kCudaTypes);

ORTMODULE_KERNEL("ai.ortmodule", ReduceSumTo, "cuda", [](const Node& node) -> Kernel {
  return cuda_kernel(node, [sizes = HostInts(node, 1)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& x = c.in(0);
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    const auto rank = static_cast<int64_t>(target.size()), added = x.dim() - rank;
    if (!cuda_plain(c, x) || !cuda_element(x) || added < 0) return false;
    std::vector<bool> reduced(static_cast<size_t>(x.dim()), true);
    for (int64_t i = 0; i < rank; ++i) {
      reduced[static_cast<size_t>(added + i)] = target[static_cast<size_t>(i)] != x.size(added + i);
      if (reduced[static_cast<size_t>(added + i)] && target[static_cast<size_t>(i)] != 1) return false;
    }
    const auto m = matrix_of(x.sizes(), reduced);
    return m && run_sum(c, queue, *m, target, 1.0f);
  });
}).types(kCudaTypes);

}  // namespace ortmodule
