// "cuda" kernels of BatchNormStatistics and BatchNormSums (batch_statistics.cu): matrices [N, C], and pictures [N, C,
// H, W], which are turned to channels last where they do not lie so.
#include <ATen/ops/empty.h>

#include "kernels/cuda_kernel.h"
#include "ops/norm/batch_statistics_launch.h"

namespace ortmodule {
namespace {

// A matrix of rows and channels; undefined where x is none.
at::Tensor matrix_of(const KernelContext& c, const at::Tensor& x) {
  if (!x.defined() || x.device() != c.device() || !cuda_element(x) || x.numel() == 0 || x.is_neg()) return {};
  if (x.dim() == 2) return x.contiguous();
  return x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
}

// Whether the inputs `first` to `last` are `channels` numbers each, of one type.
bool are_numbers(const KernelContext& c, size_t first, size_t last, int64_t channels) {
  for (size_t i = first; i <= last; ++i)
    if (!cuda_plain(c, c.in(i)) || c.in(i).numel() != channels || !cuda_element(c.in(i)) ||
        c.in(i).scalar_type() != c.in(first).scalar_type())
      return false;
  return true;
}

bool are_floats(const KernelContext& c, size_t first, size_t last, int64_t channels) {
  return are_numbers(c, first, last, channels) && c.in(first).scalar_type() == at::kFloat;
}

// Floats for each channel: [C], or [C, 1, ..] as x broadcasts them.
at::Tensor numbers_for(const at::Tensor& x, bool broadcast) {
  c10::DimVector sizes(broadcast ? x.dim() - 1 : 1, 1);
  sizes[0] = x.size(1);
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(x.device()));
}

Kernel make_cuda_statistics(const Node& node) {
  return cuda_kernel(
      node, [epsilon = static_cast<float>(node.get_float("epsilon", 1e-5)),
             momentum = static_cast<float>(node.get_float("momentum", 0.1))](KernelContext& c, const CudaQueue& queue) {
        const at::Tensor& given = c.in(0);
        const at::Tensor x = matrix_of(c, given);
        if (!x.defined() || !are_numbers(c, 1, 4, x.size(1))) return false;
        const int64_t channels = x.size(1), rows = x.numel() / channels;
        at::Tensor mean = numbers_for(x, false), invstd = numbers_for(x, false), factor = numbers_for(x, true),
                   shift = numbers_for(x, true), new_mean, new_var;
        if (c.wants(4)) new_mean = at::empty({channels}, c.in(3).options());
        if (c.wants(5)) new_var = at::empty({channels}, c.in(4).options());
        at::Tensor workspace = cuda_workspace(c, cuda::batch_workspace(rows, channels));
        queue.run("batch_statistics",
                  cuda::BatchStatisticsLaunch{
                      *cuda_element(x), *cuda_element(c.in(1)), rows, channels, epsilon, momentum, address(x),
                      address(c.in(1)), address(c.in(2)), address(c.in(3)), address(c.in(4)), mutable_address(mean),
                      mutable_address(invstd), mutable_address(factor), mutable_address(shift),
                      mutable_address(new_mean), mutable_address(new_var), mutable_address(workspace)});
        c.out(0, std::move(mean));
        c.out(1, std::move(invstd));
        c.out(2, std::move(factor));
        c.out(3, std::move(shift));
        c.out(4, std::move(new_mean));
        c.out(5, std::move(new_var));
        return true;
      });
}

Kernel make_sums(const Node& node) {
  return cuda_kernel(node, [](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor dy = matrix_of(c, c.in(0)), x = matrix_of(c, c.in(1));
    if (!x.defined() || !dy.defined() || dy.sizes() != x.sizes() || dy.scalar_type() != x.scalar_type()) return false;
    const int64_t channels = x.size(1), rows = x.numel() / channels;
    if (!are_numbers(c, 2, 2, channels) || !are_floats(c, 3, 4, channels)) return false;
    if (c.has(5) && !are_floats(c, 5, 6, channels)) return false;
    at::Tensor dscale, dbias, dy_factor = numbers_for(x, true), x_factor = numbers_for(x, true),
                              shift = numbers_for(x, true);
    if (c.wants(0)) dscale = at::empty({channels}, c.in(2).options());
    if (c.wants(1)) dbias = at::empty({channels}, c.in(2).options());
    at::Tensor workspace = cuda_workspace(c, cuda::batch_workspace(rows, channels));
    queue.run("batch_sums",
              cuda::BatchSumsLaunch{*cuda_element(x), *cuda_element(c.in(2)), rows, channels, address(dy), address(x),
                                    address(c.in(2)), address(c.in(3)), address(c.in(4)), address(c.in_or_undefined(5)),
                                    address(c.in_or_undefined(6)), mutable_address(dscale), mutable_address(dbias),
                                    mutable_address(dy_factor), mutable_address(x_factor), mutable_address(shift),
                                    mutable_address(workspace)});
    c.out(0, std::move(dscale));
    c.out(1, std::move(dbias));
    c.out(2, std::move(dy_factor));
    c.out(3, std::move(x_factor));
    c.out(4, std::move(shift));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", BatchNormStatistics, "cuda", make_cuda_statistics).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", BatchNormSums, "cuda", make_sums).types(kCudaTypes);

}  // namespace ortmodule
