// "cuda" kernels of SkipLayerNormalization and SkipSimplifiedLayerNormalization (skip_norm.cu): contiguous rows in one
// of three types, everything of the same type.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "kernels/cuda_kernel.h"
#include "ops/norm/skip_norm_launch.h"

namespace ortmodule {
namespace {

// Inputs: X, skip, gamma, beta where something is subtracted, bias.
template <bool root_mean_square>
Kernel make_skip_norm(const Node& node) {
  return cuda_kernel(node, [epsilon = node.get_float("epsilon", 1e-12)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &x = c.in(0), &skip = c.in(1), &gamma = c.in(2);
    const at::Tensor beta = root_mean_square ? at::Tensor() : c.in_or_undefined(3);
    const at::Tensor bias = c.in_or_undefined(root_mean_square ? 3 : 4);
    if (!cuda_plain(c, x) || !cuda_element(x) || x.dim() == 0 || !cuda_plain(c, skip) || skip.sizes() != x.sizes() ||
        skip.scalar_type() != x.scalar_type() || (root_mean_square && c.wants(1)))
      return false;
    const int64_t columns = x.size(-1);
    if (columns > std::numeric_limits<int32_t>::max() / 2) return false;
    for (const at::Tensor& p : {gamma, beta, bias})
      if (p.defined() &&
          (!cuda_plain(c, p) || p.numel() != columns || p.dim() != 1 || p.scalar_type() != x.scalar_type()))
        return false;
    c10::DimVector rows(x.sizes().begin(), x.sizes().end());
    rows.back() = 1;
    at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x), sum, mean, rstd;
    if (c.wants(1)) mean = at::empty(rows, x.options().dtype(at::kFloat));
    if (c.wants(2)) rstd = at::empty(rows, x.options().dtype(at::kFloat));
    if (c.wants(3)) sum = at::empty_like(x);
    queue.run("skip_norm", cuda::SkipNormLaunch{*cuda_element(x), root_mean_square, x.numel() / columns, columns,
                                                static_cast<float>(epsilon), address(x), address(skip), address(bias),
                                                address(gamma), address(beta), mutable_address(y), mutable_address(sum),
                                                mutable_address(mean), mutable_address(rstd)});
    c.out(0, std::move(y));
    if (c.wants(1)) c.out(1, std::move(mean));
    if (c.wants(2)) c.out(2, std::move(rstd));
    if (c.wants(3)) c.out(3, std::move(sum));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", SkipLayerNormalization, "cuda", make_skip_norm<false>)
    .types({DType::kFloat, DType::kFloat16, DType::kBFloat16})
    .inplace();
ORTMODULE_KERNEL("com.microsoft", SkipSimplifiedLayerNormalization, "cuda", make_skip_norm<true>)
    .types({DType::kFloat, DType::kFloat16, DType::kBFloat16})
    .inplace();

}  // namespace ortmodule
