// "cuda" kernels of LayerNormalization, RMSNormalization and their gradients (norm.cu): contiguous rows in one of three
// types, parameters of the same type and of exactly the normalized shape.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "kernels/cuda_kernel.h"
#include "kernels/host_values.h"
#include "ops/norm/norm_launch.h"

namespace ortmodule {
namespace {

struct Rows {
  cuda::Element type;
  int64_t count, columns;
  c10::IntArrayRef shape;  // normalized
};

// Parameters that are absent do not matter.
std::optional<Rows> rows_of(const KernelContext& c, const at::Tensor& x, std::initializer_list<at::Tensor> parameters,
                            int64_t axis, const char* op) {
  if (!cuda_plain(c, x)) return std::nullopt;
  const auto shape = x.sizes().slice(positive_axis(axis, x.dim(), op));
  for (const at::Tensor& p : parameters)
    if (p.defined() && (!cuda_plain(c, p) || p.sizes() != shape || p.scalar_type() != x.scalar_type()))
      return std::nullopt;
  const int64_t columns = c10::multiply_integers(shape);
  if (columns > std::numeric_limits<int32_t>::max() / 2) return std::nullopt;
  return Rows{*cuda_element(x), x.numel() / columns, columns, shape};
}

at::Tensor statistics(const at::Tensor& x, size_t normalized) {
  c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized), sizes.end(), 1);
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

template <bool root_mean_square>
Kernel make_forward(const Node& node) {
  return cuda_kernel(node, [axis = node.get_int("axis", -1), epsilon = node.get_float("epsilon", 1e-5)](
                               KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &x = c.in(0), &scale = c.in(1), bias = c.in_or_undefined(2);
    const auto rows = rows_of(c, x, {scale, bias}, axis, "LayerNormalization");
    if (!rows) return false;
    at::Tensor y = at::empty_like(x), rstd = statistics(x, rows->shape.size());
    at::Tensor mean = root_mean_square ? at::Tensor() : statistics(x, rows->shape.size());
    queue.run("norm", cuda::NormLaunch{rows->type, root_mean_square, rows->count, rows->columns,
                                       static_cast<float>(epsilon), address(x), address(scale), address(bias),
                                       mutable_address(y), mutable_address(mean), mutable_address(rstd)});
    c.out(0, std::move(y));
    if constexpr (root_mean_square) {
      c.out(1, std::move(rstd));
    } else {
      c.out(1, std::move(mean));
      c.out(2, std::move(rstd));
    }
    return true;
  });
}

// Inputs: dY, X, Mean where there is one, InvStdDev, Scale.
template <bool root_mean_square>
Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [axis = node.get_int("axis", -1)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &dy = c.in(0), &x = c.in(1), &rstd = c.in(root_mean_square ? 2 : 3);
    const at::Tensor &scale = c.in(root_mean_square ? 3 : 4), mean = root_mean_square ? at::Tensor() : c.in(2);
    const auto rows = rows_of(c, x, {scale}, axis, "LayerNormalizationGrad");
    if (!rows || !cuda_plain(c, dy) || dy.sizes() != x.sizes() || dy.scalar_type() != x.scalar_type()) return false;
    for (const at::Tensor& kept : {mean, rstd})
      if (kept.defined() && (!cuda_plain(c, kept) || kept.numel() != rows->count || kept.scalar_type() != at::kFloat))
        return false;
    at::Tensor dx, dscale, dbias, workspace;
    if (c.wants(0)) dx = at::empty_like(x);
    if (c.wants(1)) dscale = at::empty_like(scale);
    if (!root_mean_square && c.wants(2)) dbias = at::empty_like(scale);
    if (dscale.defined() || dbias.defined())
      workspace = cuda_workspace(c, cuda::norm_workspace(rows->count, rows->columns));
    queue.run("norm_gradient",
              cuda::NormGradLaunch{rows->type, root_mean_square, rows->count, rows->columns, address(dy), address(x),
                                   address(scale), address(mean), address(rstd), mutable_address(dx),
                                   mutable_address(dscale), mutable_address(dbias), mutable_address(workspace)});
    c.out(0, std::move(dx));
    c.out(1, std::move(dscale));
    if (!root_mean_square) c.out(2, std::move(dbias));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("", LayerNormalization, "cuda", make_forward<false>).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", LayerNormalizationGrad, "cuda", make_gradient<false>).types(kCudaTypes);
ORTMODULE_KERNEL("", RMSNormalization, "cuda", make_forward<true>).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", RMSNormalizationGrad, "cuda", make_gradient<true>).types(kCudaTypes);

}  // namespace ortmodule
