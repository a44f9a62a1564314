// Kernels of RMSNormalization and its gradient.
//
// "cpu": float rows in one pass over memory forward and one backward; ATen composes eight operators there. "aten":
// the same formula in ATen operators, in float for 16-bit types, for every other device and type.
//   dx = rstd * (dy * s - x * rstd^2 * mean(dy * s * x)),   ds = sum over rows of dy * x * rstd
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/norm/norm_rows.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

c10::DimVector trailing_axes(int64_t first, int64_t rank) {
  c10::DimVector axes;
  for (int64_t i = first; i < rank; ++i) axes.push_back(i);
  return axes;
}

at::ScalarType compute_type(const at::Tensor& x) { return computed_in(x.scalar_type()); }

void aten_forward(KernelContext& c, int64_t axis, double epsilon) {
  const at::Tensor x = c.in(0).to(compute_type(c.in(0)));
  const auto axes = trailing_axes(positive_axis(axis, x.dim(), "RMSNormalization"), x.dim());
  const at::Tensor rstd = at::rsqrt(at::mean(at::mul(x, x), axes, true).add_(epsilon));
  c.out(0, at::mul(x, rstd).mul_(c.in(1)).to(c.in(0).scalar_type()));
  c.out(1, rstd);
}

void aten_backward(KernelContext& c, int64_t axis) {
  const at::Tensor &dy_in = c.in(0), &x_in = c.in(1), &rstd = c.in(2), &scale = c.in(3);
  const at::Tensor dy = dy_in.to(rstd.scalar_type());
  const at::Tensor normal = at::mul(x_in, rstd);
  if (c.wants(1)) c.out(1, at::mul(dy, normal).sum_to_size(scale.sizes()).to(scale.scalar_type()));
  if (c.wants(0)) {
    const auto axes = trailing_axes(positive_axis(axis, dy.dim(), "RMSNormalizationGrad"), dy.dim());
    at::Tensor dx = at::mul(dy, scale);
    const at::Tensor dot = at::mean(at::mul(dx, normal), axes, true);
    c.out(0, dx.sub_(at::mul(normal, dot)).mul_(rstd).to(x_in.scalar_type()));
  }
}

ORTMODULE_SIMD float sum_of_squares(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

ORTMODULE_SIMD float sum_of_products(const float* a, const float* b, const float* d, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i] * d[i];
  return sum;
}

ORTMODULE_SIMD void normalize(const float* x, const float* scale, float rstd, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * scale[i];
}

// dx may be dy.
ORTMODULE_SIMD void input_gradient(const float* dy, const float* x, const float* scale, float rstd, float factor,
                                   float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] * scale[i] - x[i] * factor);
}

ORTMODULE_SIMD void add_scale_gradient(const float* dy, const float* x, float rstd, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * x[i] * rstd;
}

bool float_rows(const at::Tensor& x, const at::Tensor& scale, int64_t axis) {
  return x.scalar_type() == at::kFloat && scale.scalar_type() == at::kFloat && x.is_contiguous() &&
         scale.is_contiguous() && scale.sizes() == x.sizes().slice(axis) && x.numel() > 0;
}

}  // namespace

void scale_row_by_rms(const float* x, const float* scale, int64_t n, double epsilon, float* y, float* inv_rms) {
  const double mean = static_cast<double>(sum_of_squares(x, n)) / static_cast<double>(n);
  *inv_rms = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
  normalize(x, scale, *inv_rms, y, n);
}

namespace {

void cpu_forward(KernelContext& c, int64_t axis_attr, double epsilon) {
  const at::Tensor &x = c.in(0), &scale = c.in(1);
  const int64_t axis = positive_axis(axis_attr, x.dim(), "RMSNormalization");
  if (!float_rows(x, scale, axis)) return aten_forward(c, axis_attr, epsilon);
  const int64_t n = scale.numel(), rows = x.numel() / n;
  const bool overwrite = c.may_overwrite(0);
  const at::Tensor y = overwrite ? x : at::empty_like(x);
  c10::DimVector stats(x.sizes());
  for (size_t i = axis; i < stats.size(); ++i) stats[i] = 1;
  const at::Tensor rstd = at::empty(stats, x.options());
  const float *xp = x.const_data_ptr<float>(), *sp = scale.const_data_ptr<float>();
  float *yp = y.mutable_data_ptr<float>(), *rp = rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) scale_row_by_rms(xp + r * n, sp, n, epsilon, yp + r * n, rp + r);
  });
  c.out(1, rstd);
  c.out(0, y);
}

void cpu_backward(KernelContext& c, int64_t axis_attr) {
  const at::Tensor &x = c.in(1), &rstd = c.in(2), &scale = c.in(3);
  const int64_t axis = positive_axis(axis_attr, x.dim(), "RMSNormalizationGrad");
  if (!float_rows(x, scale, axis) || c.in(0).scalar_type() != at::kFloat || rstd.scalar_type() != at::kFloat)
    return aten_backward(c, axis_attr);
  ORTMODULE_CHECK(c.in(0).sizes() == x.sizes() && rstd.numel() == x.numel() / scale.numel() && rstd.is_contiguous(),
                  kRuntime, "[RMSNormalizationGrad] dY ", c.in(0).sizes(), " and InvStdDev ", rstd.sizes(),
                  " do not fit X ", x.sizes());
  const bool overwrite = c.in(0).is_contiguous() && c.may_overwrite(0);
  const at::Tensor dy = c.in(0).contiguous();
  const int64_t n = scale.numel(), rows = x.numel() / n;
  const float *gp = dy.const_data_ptr<float>(), *xp = x.const_data_ptr<float>(), *sp = scale.const_data_ptr<float>(),
              *rp = rstd.const_data_ptr<float>();
  const at::Tensor dx = c.wants(0) ? (overwrite ? dy : at::empty_like(x)) : at::Tensor();
  float* dxp = dx.defined() ? dx.mutable_data_ptr<float>() : nullptr;
  // One partial sum per block of rows; the blocks depend on the sizes alone, so the result does not change with the
  // number of threads.
  const int64_t blocks = std::min<int64_t>(rows, 16), per_block = (rows + blocks - 1) / blocks;
  const at::Tensor partial = c.wants(1) ? at::zeros({blocks, n}, x.options()) : at::Tensor();
  float* pp = partial.defined() ? partial.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, blocks, std::max<int64_t>(1, 16384 / (n * per_block)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t r = b * per_block; r < std::min(rows, (b + 1) * per_block); ++r) {
        const float *g = gp + r * n, *row = xp + r * n;
        if (pp) add_scale_gradient(g, row, rp[r], pp + b * n, n);
        if (!dxp) continue;
        const float dot = sum_of_products(g, row, sp, n) / static_cast<float>(n);
        input_gradient(g, row, sp, rp[r], rp[r] * rp[r] * dot, dxp + r * n, n);
      }
    }
  });
  if (c.wants(1)) c.out(1, at::sum(partial, 0).view(scale.sizes()));
  if (c.wants(0)) c.out(0, dx);
}

}  // namespace

ORTMODULE_KERNEL("", RMSNormalization, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", -1), epsilon = node.get_float("epsilon", 1e-5)](KernelContext& c) {
    aten_forward(c, axis, epsilon);
  };
});
ORTMODULE_KERNEL("", RMSNormalization, "cpu",
                 [](const Node& node) -> Kernel {
                   return [axis = node.get_int("axis", -1), epsilon = node.get_float("epsilon", 1e-5)](
                              KernelContext& c) { cpu_forward(c, axis, epsilon); };
                 })
    .types({DType::kFloat})
    .inplace();
ORTMODULE_KERNEL("ai.ortmodule", RMSNormalizationGrad, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", -1)](KernelContext& c) { aten_backward(c, axis); };
});
ORTMODULE_KERNEL("ai.ortmodule", RMSNormalizationGrad, "cpu",
                 [](const Node& node) -> Kernel {
                   return [axis = node.get_int("axis", -1)](KernelContext& c) { cpu_backward(c, axis); };
                 })
    .types({DType::kFloat})
    .inplace();

}  // namespace ortmodule
