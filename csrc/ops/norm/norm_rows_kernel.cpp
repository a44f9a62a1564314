#include "ops/norm/norm_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu_simd.h"

namespace ortmodule {
namespace {

constexpr int64_t kRowsPerBlock = 32;  // of a sum over rows: blocks are added to the total, which keeps rounding small
constexpr int64_t kLanes = 16, kStep = 4 * kLanes;

// Sixteen floats of memory, at any address; processors with shorter vectors take several.
typedef float Lanes __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

typedef float Half __attribute__((vector_size(kLanes * 2), may_alias));
typedef float Quarter __attribute__((vector_size(kLanes), may_alias));

ORTMODULE_INLINE const Lanes& lanes(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
ORTMODULE_INLINE Lanes& lanes(float* p) { return *reinterpret_cast<Lanes*>(p); }

// The sum of four vectors of partial sums.
ORTMODULE_INLINE float added(const Lanes (&sums)[4]) {
  const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const auto* halves = reinterpret_cast<const Half*>(&all);
  const Half half = halves[0] + halves[1];
  const auto* quarters = reinterpret_cast<const Quarter*>(&half);
  const Quarter four = quarters[0] + quarters[1];
  return (four[0] + four[1]) + (four[2] + four[3]);
}

// The sum of the differences from `base`.
ORTMODULE_INLINE float sum(const float* x, float base, int64_t n) {
  Lanes sums[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int k = 0; k < 4; ++k) sums[k] += lanes(x + i + k * kLanes) - base;
  float total = added(sums);
  for (; i < n; ++i) total += x[i] - base;
  return total;
}

// In a row of one number over and over the mean is that number, however large: differences from it are summed. Two
// elements tell most other rows apart, and differences do no harm in the rest.
ORTMODULE_INLINE float mean_of(const float* x, int64_t n) {
  if (x[0] == x[n - 1]) return x[0] + sum(x, x[0], n) / static_cast<float>(n);
  return sum(x, 0.0f, n) / static_cast<float>(n);
}

ORTMODULE_INLINE float sum_of_squares(const float* x, float mean, int64_t n) {
  Lanes sums[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int k = 0; k < 4; ++k) {
      const Lanes d = lanes(x + i + k * kLanes) - mean;
      sums[k] += d * d;
    }
  float total = added(sums);
  for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

ORTMODULE_SIMD void forward(const NormRows& of, const float* bias, double epsilon, float* y, float* mean,
                            float* inv_std, int64_t begin, int64_t end) {
  const int64_t n = of.width;
  const float* scale = of.scale;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = of.x + r * n;
    float* to = y + r * n;
    const float m = mean_of(x, n);
    const float variance = sum_of_squares(x, m, n) / static_cast<float>(n);
    const float s = 1.0f / std::sqrt(variance + static_cast<float>(epsilon));
    mean[r] = m;
    inv_std[r] = s;
    if (bias) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = (x[i] - m) * s * scale[i] + bias[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = (x[i] - m) * s * scale[i];
    }
  }
}

// dscale and dbias are added to.
ORTMODULE_SIMD void parameters(const NormRows& of, const float* dy, const float* mean, const float* inv_std,
                               float* dscale, float* dbias, int64_t r) {
  const float *x = of.x + r * of.width, *d = dy + r * of.width, m = mean[r], s = inv_std[r];
#pragma omp simd
  for (int64_t i = 0; i < of.width; ++i) {
    dscale[i] += d[i] * ((x[i] - m) * s);
    dbias[i] += d[i];
  }
}

// dx = inv_std * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * scale and xhat = (x - mean) * inv_std. The same
// rounded g has to be in its mean and beside it, so that they cancel.
ORTMODULE_SIMD void inputs(const NormRows& of, const float* dy, const float* mean, const float* inv_std, float* dx,
                           int64_t r) {
  const int64_t n = of.width;
  const float *x = of.x + r * n, *d = dy + r * n, *scale = of.scale, m = mean[r], s = inv_std[r];
  float* to = dx + r * n;
  Lanes plain[4] = {}, along[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int k = 0; k < 4; ++k) {
      const int64_t at = i + k * kLanes;
      const Lanes g = lanes(d + at) * lanes(scale + at);
      lanes(to + at) = g;
      plain[k] += g;
      along[k] += g * (lanes(x + at) - m);
    }
  float sum = added(plain), product = added(along);
  for (; i < n; ++i) {
    const float g = to[i] = d[i] * scale[i];
    sum += g;
    product += g * (x[i] - m);
  }
  const float a = sum / static_cast<float>(n), b = product * s * s / static_cast<float>(n);
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) to[k] = s * (to[k] - a - (x[k] - m) * b);
}

}  // namespace

void normalize_row_range(const NormRows& of, const float* bias, double epsilon, float* y, float* mean, float* inv_std,
                         int64_t begin, int64_t end) {
  forward(of, bias, epsilon, y, mean, inv_std, begin, end);
}

void normalize_rows(const NormRows& of, const float* bias, double epsilon, float* y, float* mean, float* inv_std) {
  at::parallel_for(0, of.rows, std::max<int64_t>(1, kNormGrain / of.width),
                   [&](int64_t begin, int64_t end) { forward(of, bias, epsilon, y, mean, inv_std, begin, end); });
}

void normalize_rows_grad(const NormRows& of, const float* dy, const float* mean, const float* inv_std,
                         const NormGradients& to) {
  const int64_t n = of.width, worth = std::max<int64_t>(1, of.rows * n / kNormGrain);
  const int64_t chunks = std::min<int64_t>({at::get_num_threads(), of.rows, worth});
  // Of each chunk: the sums of dscale and of dbias over a block of rows, and over the blocks before.
  std::vector<float> sums(to.dscale ? chunks * 4 * n : 0);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      float *block = sums.data() + k * 4 * n, *total = block + 2 * n;
      const int64_t first = of.rows * k / chunks, last = of.rows * (k + 1) / chunks;
      for (int64_t r = first; r < last; ++r) {
        if (to.dx) inputs(of, dy, mean, inv_std, to.dx, r);
        if (!to.dscale) continue;
        parameters(of, dy, mean, inv_std, block, block + n, r);
        if ((r - first + 1) % kRowsPerBlock != 0 && r + 1 < last) continue;
        for (int64_t i = 0; i < 2 * n; ++i) total[i] += block[i];
        std::fill_n(block, 2 * n, 0.0f);
      }
    }
  });
  if (!to.dscale) return;
  for (int64_t k = 0; k < chunks; ++k) {
    const float* total = sums.data() + (k * 4 + 2) * n;
    for (int64_t i = 0; i < n; ++i) {
      to.dscale[i] = k == 0 ? total[i] : to.dscale[i] + total[i];
      to.dbias[i] = k == 0 ? total[n + i] : to.dbias[i] + total[n + i];
    }
  }
}

}  // namespace ortmodule
