#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu_simd.h"
#include "ops/norm/batch_planes.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastPlane = 64;   // elements of a plane that is taken alone
constexpr int64_t kWidth = 512;       // elements of smaller planes that are taken together
constexpr int64_t kLeastWork = 8192;  // elements that a thread is worth
constexpr int64_t kLeastSize =
    32768;  // fewer elements are left to ATen: there is no time to win, and its bits are eager's

// The part of X that one sum is over: `count` runs of `length` elements, `pitch` apart.
struct Runs {
  int64_t count, length, pitch;
};

// The sums over all of `runs`, in double as ATen has them.

ORTMODULE_SIMD double sum_of(const float* x, Runs runs) {
  double sum = 0;
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* run = x + n * runs.pitch;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < runs.length; ++i) sum += run[i];
  }
  return sum;
}

ORTMODULE_SIMD double sum_of_squares(const float* x, double mean, Runs runs) {
  double sum = 0;
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* run = x + n * runs.pitch;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < runs.length; ++i) sum += (run[i] - mean) * (run[i] - mean);
  }
  return sum;
}

ORTMODULE_SIMD void sums_of_products(const float* dy, const float* x, double mean, Runs runs, double& sum,
                                     double& product) {
  double s = 0, p = 0;
  for (int64_t n = 0; n < runs.count; ++n) {
    const float *run = x + n * runs.pitch, *d = dy + n * runs.pitch;
#pragma omp simd reduction(+ : s, p)
    for (int64_t i = 0; i < runs.length; ++i) {
      s += d[i];
      p += d[i] * (run[i] - mean);
    }
  }
  sum = s;
  product = p;
}

// The sums at each place of a run, added to `sum`.

ORTMODULE_SIMD void sums_across(const float* x, Runs runs, double* sum) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* run = x + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) sum[i] += run[i];
  }
}

ORTMODULE_SIMD void squares_across(const float* x, const float* mean, Runs runs, double* sum) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* run = x + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) {
      const double apart = static_cast<double>(run[i]) - mean[i];
      sum[i] += apart * apart;
    }
  }
}

ORTMODULE_SIMD void products_across(const float* dy, const float* x, const float* mean, Runs runs, double* sum,
                                    double* product) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float *run = x + n * runs.pitch, *d = dy + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) {
      sum[i] += d[i];
      product[i] += d[i] * (static_cast<double>(run[i]) - mean[i]);
    }
  }
}

// y = x alpha + beta, with numbers of the run's own or one per place.

ORTMODULE_SIMD void apply_one(const float* x, float alpha, float beta, Runs runs, float* y) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* from = x + n * runs.pitch;
    float* to = y + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) to[i] = from[i] * alpha + beta;
  }
}

ORTMODULE_SIMD void apply_each(const float* x, const float* alpha, const float* beta, Runs runs, float* y) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float* from = x + n * runs.pitch;
    float* to = y + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) to[i] = from[i] * alpha[i] + beta[i];
  }
}

// dx = (dy - shift - (x - mean) slope) factor.

ORTMODULE_SIMD void gradient_one(const float* dy, const float* x, float mean, float shift, float slope, float factor,
                                 Runs runs, float* dx) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float *from = x + n * runs.pitch, *d = dy + n * runs.pitch;
    float* to = dx + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) to[i] = (d[i] - shift - (from[i] - mean) * slope) * factor;
  }
}

ORTMODULE_SIMD void gradient_each(const float* dy, const float* x, const float* mean, const float* shift,
                                  const float* slope, const float* factor, Runs runs, float* dx) {
  for (int64_t n = 0; n < runs.count; ++n) {
    const float *from = x + n * runs.pitch, *d = dy + n * runs.pitch;
    float* to = dx + n * runs.pitch;
#pragma omp simd
    for (int64_t i = 0; i < runs.length; ++i) to[i] = (d[i] - shift[i] - (from[i] - mean[i]) * slope[i]) * factor[i];
  }
}

// How X is cut: planes of `plane` elements, `group` channels at a time.
struct Cut {
  int64_t batch, channels, plane, group;

  explicit Cut(const at::Tensor& x) : batch(x.size(0)), channels(x.size(1)), plane(x.numel() / (batch * channels)) {
    const int64_t share = (channels + at::get_num_threads() - 1) / at::get_num_threads();
    group = plane >= kLeastPlane ? 1 : std::clamp<int64_t>(kWidth / plane, 1, share);
  }
  double count() const { return static_cast<double>(batch * plane); }

  // body(first channel, number of channels, what they span)
  template <typename Body>
  void for_groups(const Body& body) const {
    const int64_t groups = (channels + group - 1) / group;
    const int64_t grain = std::max<int64_t>(1, kLeastWork / (batch * plane * group));
    at::parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g * group, together = std::min(group, channels - first);
        body(first, together, Runs{batch, together * plane, channels * plane});
      }
    });
  }
  bool alone() const { return group == 1 && plane >= kLeastPlane; }
};

// One number per channel becomes one per place.
void spread(const float* per_channel, int64_t channels, int64_t plane, float* to) {
  for (int64_t c = 0; c < channels; ++c) std::fill_n(to + c * plane, plane, per_channel[c]);
}

double sum_of_places(const double* places, int64_t plane) {
  double sum = 0;
  for (int64_t i = 0; i < plane; ++i) sum += places[i];
  return sum;
}

// y = (x - mean) invstd scale + bias; prepare(first channel, number of channels, runs) may fill in mean and invstd.
template <typename Prepare>
at::Tensor applied(const Cut& cut, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& bias,
                   const at::Tensor& mean, const at::Tensor& invstd, const Prepare& prepare) {
  const at::Tensor y = at::empty_like(x), scales = scale.contiguous(), biases = bias.contiguous();
  const float *from = x.const_data_ptr<float>(), *w = scales.const_data_ptr<float>();
  const float *b = biases.const_data_ptr<float>(), *m = mean.const_data_ptr<float>();
  const float* s = invstd.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  cut.for_groups([&](int64_t first, int64_t together, Runs runs) {
    prepare(first, together, runs);
    const int64_t at = first * cut.plane;
    std::vector<float> alpha(together), beta(together);
    for (int64_t c = 0; c < together; ++c) {
      alpha[c] = s[first + c] * w[first + c];
      beta[c] = b[first + c] - m[first + c] * alpha[c];
    }
    if (cut.alone()) {
      apply_one(from + at, alpha[0], beta[0], runs, to + at);
    } else {
      std::vector<float> places(2 * runs.length);
      spread(alpha.data(), together, cut.plane, places.data());
      spread(beta.data(), together, cut.plane, places.data() + runs.length);
      apply_each(from + at, places.data(), places.data() + runs.length, runs, to + at);
    }
  });
  return y;
}

}  // namespace

bool has_batch_planes(const at::Tensor& x, const at::Tensor& per_channel) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && per_channel.scalar_type() == at::kFloat && x.dim() >= 2 &&
         x.numel() >= kLeastSize && x.is_contiguous();
}

at::Tensor normalized_batch(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& bias, double epsilon,
                            BatchStatistics& out) {
  const Cut cut(x);
  for (at::Tensor* t : {&out.mean, &out.var, &out.invstd}) *t = at::empty({cut.channels}, x.options());
  const float* from = x.const_data_ptr<float>();
  float *means = out.mean.mutable_data_ptr<float>(), *vars = out.var.mutable_data_ptr<float>();
  float* invstds = out.invstd.mutable_data_ptr<float>();
  return applied(cut, x, scale, bias, out.mean, out.invstd, [&](int64_t first, int64_t together, Runs runs) {
    const float* part = from + first * cut.plane;
    std::vector<double> var(together);
    if (cut.alone()) {
      means[first] = static_cast<float>(sum_of(part, runs) / cut.count());
      var[0] = sum_of_squares(part, means[first], runs) / cut.count();
    } else {
      std::vector<double> total(runs.length);
      std::vector<float> spread_means(runs.length);
      const auto average = [&](int64_t c) {
        return sum_of_places(total.data() + c * cut.plane, cut.plane) / cut.count();
      };
      sums_across(part, runs, total.data());
      for (int64_t c = 0; c < together; ++c) means[first + c] = static_cast<float>(average(c));
      spread(means + first, together, cut.plane, spread_means.data());
      std::fill(total.begin(), total.end(), 0);
      squares_across(part, spread_means.data(), runs, total.data());
      for (int64_t c = 0; c < together; ++c) var[c] = average(c);
    }
    for (int64_t c = 0; c < together; ++c) {
      vars[first + c] = static_cast<float>(var[c]);
      invstds[first + c] = static_cast<float>(1 / std::sqrt(var[c] + epsilon));
    }
  });
}

at::Tensor normalized_batch(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& invstd) {
  return applied(Cut(x), x, scale, bias, mean.contiguous(), invstd.contiguous(), [](int64_t, int64_t, Runs) {});
}

BatchGradients normalized_batch_gradients(const at::Tensor& given, const at::Tensor& x, const at::Tensor& scale,
                                          const at::Tensor& mean, const at::Tensor& invstd, bool wants_dx) {
  const Cut cut(x);
  const at::Tensor dy = given.contiguous(), weights = scale.contiguous(), centres = mean.contiguous(),
                   widths = invstd.contiguous();
  BatchGradients out;
  if (wants_dx) out.dx = at::empty_like(x);
  out.dscale = at::empty({cut.channels}, x.options());
  out.dbias = at::empty({cut.channels}, x.options());
  const float *d = dy.const_data_ptr<float>(), *from = x.const_data_ptr<float>();
  const float *w = weights.const_data_ptr<float>(), *means = centres.const_data_ptr<float>();
  const float* invstds = widths.const_data_ptr<float>();
  float* dx = wants_dx ? out.dx.mutable_data_ptr<float>() : nullptr;
  float *dscale = out.dscale.mutable_data_ptr<float>(), *dbias = out.dbias.mutable_data_ptr<float>();
  cut.for_groups([&](int64_t first, int64_t together, Runs runs) {
    const int64_t at = first * cut.plane;
    std::vector<double> sums(together), products(together);
    std::vector<float> shift(together), slope(together), factor(together), places;
    if (cut.alone()) {
      sums_of_products(d + at, from + at, means[first], runs, sums[0], products[0]);
    } else {
      places.resize(4 * runs.length);
      float* spread_means = places.data() + 2 * runs.length;
      std::vector<double> total(2 * runs.length);
      spread(means + first, together, cut.plane, spread_means);
      products_across(d + at, from + at, spread_means, runs, total.data(), total.data() + runs.length);
      for (int64_t c = 0; c < together; ++c) {
        sums[c] = sum_of_places(total.data() + c * cut.plane, cut.plane);
        products[c] = sum_of_places(total.data() + runs.length + c * cut.plane, cut.plane);
      }
    }
    for (int64_t c = 0; c < together; ++c) {
      const int64_t k = first + c;
      dbias[k] = static_cast<float>(sums[c]);
      dscale[k] = static_cast<float>(products[c] * invstds[k]);
      shift[c] = static_cast<float>(sums[c] / cut.count());
      slope[c] = static_cast<float>(products[c] * invstds[k] * invstds[k] / cut.count());
      factor[c] = invstds[k] * w[k];
    }
    if (!wants_dx) return;
    if (cut.alone()) {
      gradient_one(d + at, from + at, means[first], shift[0], slope[0], factor[0], runs, dx + at);
    } else {
      float *all_shift = places.data(), *all_slope = all_shift + runs.length;
      float *all_means = all_slope + runs.length, *all_factor = all_means + runs.length;
      spread(shift.data(), together, cut.plane, all_shift);
      spread(slope.data(), together, cut.plane, all_slope);
      spread(factor.data(), together, cut.plane, all_factor);
      gradient_each(d + at, from + at, all_means, all_shift, all_slope, all_factor, runs, dx + at);
    }
  });
  return out;
}

}  // namespace ortmodule
