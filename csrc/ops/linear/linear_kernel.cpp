// Kernels of Linear and LinearGrad: products on views flattened to two dimensions.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"
#include "ops/matmul_provider.h"

namespace ortmodule {
namespace {

// A vector is one row.
at::Tensor as_matrix(const at::Tensor& t) {
  if (t.dim() == 2) return t;
  return t.dim() > 1 ? t.flatten(0, -2) : t.unsqueeze(0);
}

// The sum of the rows of a matrix: a bias' gradient. at::sum takes some 2 us to find out how to add a few rows up. Rows
// are added in blocks, so that rounding errors grow with their square root.
at::Tensor sum_of_rows(const at::Tensor& t) {
  constexpr int64_t kSmall = 16384, kBlock = 16;
  const int64_t m = t.size(0), n = t.size(1), step = t.stride(0);
  if (!t.is_cpu() || t.scalar_type() != at::kFloat || t.numel() > kSmall || t.stride(1) != 1 || m == 0 || n == 0)
    return at::sum(t, 0);
  at::Tensor out(at::detail::empty_cpu({n}, at::kFloat));
  const float* from = t.const_data_ptr<float>();
  float* const total = out.mutable_data_ptr<float>();
  if (m <= kBlock) {
    std::copy_n(from, n, total);
    for (int64_t i = 1; i < m; ++i)
      for (int64_t k = 0; k < n; ++k) total[k] += from[i * step + k];
    return out;
  }
  std::fill_n(total, n, 0.0f);
  c10::SmallVector<float, 256> block(n);
  for (int64_t begin = 0; begin < m; begin += kBlock) {
    std::copy_n(from + begin * step, n, block.data());
    for (int64_t i = begin + 1; i < std::min(begin + kBlock, m); ++i)
      for (int64_t k = 0; k < n; ++k) block[k] += from[i * step + k];
    for (int64_t k = 0; k < n; ++k) total[k] += block[k];
  }
  return out;
}

void linear(KernelContext& c) { c.out(0, linear_product(c.in(0), c.in(1), c.in_or_undefined(2))); }

void linear_grad(KernelContext& c) {
  const at::Tensor& dy = c.in(0);
  const at::Tensor rows = as_matrix(dy);
  if (c.wants(0)) {
    at::Tensor dx = matrix_product(rows, c.in(2));
    if (dy.dim() != 2) {
      c10::DimVector sizes(dy.sizes());
      sizes.back() = dx.size(1);
      dx = dx.view(sizes);
    }
    c.out(0, std::move(dx));
  }
  if (c.wants(1)) c.out(1, transposed_product(rows, as_matrix(c.in(1))));
  if (c.wants(2)) c.out(2, sum_of_rows(rows));
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", Linear, "aten", [](const Node&) -> Kernel { return linear; });
ORTMODULE_KERNEL("ai.ortmodule", LinearGrad, "aten", [](const Node&) -> Kernel { return linear_grad; });

}  // namespace ortmodule
