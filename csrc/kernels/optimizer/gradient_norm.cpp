#include "kernels/optimizer/gradient_norm.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/optimizer/device_norm.h"
#include "kernels/optimizer/exact.h"
#include "kernels/optimizer/runs.h"

namespace ortmodule {
namespace {

enum class Order { kOne, kTwo, kMost, kLeast, kAny };

Order order_of(double p) {
  if (p == 1) return Order::kOne;
  if (p == 2) return Order::kTwo;
  if (std::isinf(p)) return p > 0 ? Order::kMost : Order::kLeast;
  return Order::kAny;
}

// The sum of term(x[i]). Four sums side by side, for an addition has to wait for the one before it.
template <typename T, typename Term>
ORTMODULE_INLINE double sum_of(const T* x, int64_t n, const Term& term) {
  const int64_t quarter = n / 4;
  const T *const second = x + quarter, *const third = second + quarter, *const fourth = third + quarter;
  double a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += term(x[i]);
    b += term(second[i]);
    c += term(third[i]);
    d += term(fourth[i]);
  }
  for (int64_t i = 4 * quarter; i < n; ++i) a += term(x[i]);
  return (a + b) + (c + d);
}
template <typename T>
ORTMODULE_INLINE double sum_of_squares(const T* x, int64_t n) {
  return sum_of(x, n, [](double v) ORTMODULE_INLINE_LAMBDA { return v * v; });
}
template <typename T>
ORTMODULE_INLINE double sum_of_sizes(const T* x, int64_t n) {
  return sum_of(x, n, [](double v) ORTMODULE_INLINE_LAMBDA { return std::fabs(v); });
}
ORTMODULE_SIMD double squares(const float* x, int64_t n) { return sum_of_squares(x, n); }
ORTMODULE_SIMD double squares(const double* x, int64_t n) { return sum_of_squares(x, n); }
ORTMODULE_SIMD double sizes(const float* x, int64_t n) { return sum_of_sizes(x, n); }
ORTMODULE_SIMD double sizes(const double* x, int64_t n) { return sum_of_sizes(x, n); }

template <typename T>
double extreme(const T* x, int64_t n, bool most) {
  double out = most ? 0 : std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    const double size = std::fabs(static_cast<double>(x[i]));
    if (std::isnan(size)) return size;
    out = most ? std::max(out, size) : std::min(out, size);
  }
  return out;
}
template <typename T>
double powers(const T* x, int64_t n, double p) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::pow(std::fabs(static_cast<double>(x[i])), p);
  return sum;
}

template <typename T>
double part_of(const T* x, int64_t n, Order order, double p) {
  switch (order) {
    case Order::kOne:
      return sizes(x, n);
    case Order::kTwo:
      return squares(x, n);
    case Order::kAny:
      return powers(x, n, p);
    default:
      return extreme(x, n, order == Order::kMost);
  }
}

double joined(Order order, double a, double b) {
  if (order == Order::kMost) return std::isnan(a) || b < a ? a : b;
  if (order == Order::kLeast) return std::isnan(a) || b > a ? a : b;
  return a + b;
}

template <typename T>
ORTMODULE_INLINE void multiplied(T* __restrict x, int64_t n, T factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}
ORTMODULE_SIMD void multiply(float* x, int64_t n, float factor) { multiplied(x, n, factor); }
ORTMODULE_SIMD void multiply(double* x, int64_t n, double factor) { multiplied(x, n, factor); }

// Gradients as parameters, whose elements lie in any order without gaps.
std::vector<Prepared> columns_of(const std::vector<at::Tensor>& gradients) {
  std::vector<Prepared> out;
  for (const at::Tensor& g : gradients) {
    const auto type = g.scalar_type();
    ORTMODULE_CHECK_ARG(g.layout() == at::kStrided && g.is_cpu() && g.is_non_overlapping_and_dense() && !g.is_neg() &&
                            (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf),
                        "a gradient of ", type, " and shape ", g.sizes(),
                        " is not a dense floating-point tensor of the CPU");
    Prepared p;
    p.size = g.numel();
    p.doubles = type == at::kDouble;
    if (p.size) p.parameter = {g.data_ptr(), type};
    out.push_back(std::move(p));
  }
  return out;
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& gradients, double p) {
  const Order order = order_of(p);
  const std::vector<Prepared> columns = columns_of(gradients);
  const std::vector<Piece> pieces = pieces_of(columns);
  const double nothing = order == Order::kLeast ? std::numeric_limits<double>::infinity() : 0;
  std::vector<double> parts(pieces.size(), nothing);
  for_each_index(pieces.size(), [&](size_t i) {
    const Prepared& one = columns[pieces[i].parameter];
    in_its_type(one, [&]<typename T>(T) {
      for_each_run<T>(one, pieces[i].begin, pieces[i].end, {}, [&](const Run<T>& run) {
        parts[i] = joined(order, parts[i], part_of(run.parameter, run.n, order, p));
      });
    });
  });
  double sum = nothing;
  for (double part : parts) sum = joined(order, sum, part);
  if (order == Order::kTwo) return std::sqrt(sum);
  return order == Order::kAny ? std::pow(sum, 1 / p) : sum;
}

void scale_gradients(const std::vector<at::Tensor>& all, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, others;
  for (const at::Tensor& g : all) (g.is_cpu() ? gradients : others).push_back(g);
  if (!others.empty()) scale_on_device(others, factor);
  const std::vector<Prepared> columns = columns_of(gradients);
  const std::vector<Piece> pieces = pieces_of(columns);
  for_each_index(pieces.size(), [&](size_t i) {
    const Prepared& one = columns[pieces[i].parameter];
    in_its_type(one, [&]<typename T>(T) {
      for_each_run<T>(one, pieces[i].begin, pieces[i].end, {.parameter = true},
                      [&](const Run<T>& run) { multiply(run.parameter, run.n, static_cast<T>(factor)); });
    });
  });
  for (const at::Tensor& g : all)
    if (!g.is_inference()) g.unsafeGetTensorImpl()->bump_version();
}

}  // namespace ortmodule
