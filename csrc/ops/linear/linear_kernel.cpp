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

// Few rows are added up here: at::sum's set-up takes longer than that.
constexpr int64_t kFewRows = 256, kFewElements = int64_t{1} << 14;

at::Tensor sum_of_rows(const at::Tensor& rows) {
  const int64_t m = rows.size(0), n = rows.size(1);
  if (rows.scalar_type() != at::kFloat || !rows.is_cpu() || m == 0 || m > kFewRows || m * n > kFewElements ||
      !rows.is_contiguous() || rows.is_neg())
    return at::sum(rows, 0);
  at::Tensor out(at::detail::empty_cpu({n}, at::kFloat));
  float* sums = out.mutable_data_ptr<float>();
  const float* row = rows.const_data_ptr<float>();
  std::copy_n(row, n, sums);
  for (int64_t i = 1; i < m; ++i) {
    row += n;
    for (int64_t j = 0; j < n; ++j) sums[j] += row[j];
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
