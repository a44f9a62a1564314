// LAMB: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020, algorithm 2.
//
// With d = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w, a parameter w moves by
// -lr * ratio * d, ratio = |w| / |d| held between `ratio_min` and `ratio_max`, and 1 where either norm is 0. The
// direction is computed twice, for its norm and for the step, rather than kept: 40 bytes an element pass through
// memory.
#include <cmath>

#include "kernels/optimizer/device_step.h"
#include "kernels/optimizer/exact.h"
#include "kernels/optimizer/rules.h"

namespace ortmodule {
namespace {

// Parameters are taken together until they have so many elements, which lie in a last cache between the two passes.
constexpr int64_t kBatch = int64_t{1} << 20;

template <typename T>
struct Numbers {
  T scale1, scale2, epsilon, decay;  // scales: over the bias corrections

  explicit Numbers(const Prepared& p)
      : scale1(static_cast<T>(1 / bias_correction(p, "beta1"))),
        scale2(static_cast<T>(1 / bias_correction(p, "beta2"))),
        epsilon(static_cast<T>(p.setting("eps"))),
        decay(static_cast<T>(p.setting("weight_decay"))) {}
};

struct Squares {
  double parameter = 0, direction = 0;
};

template <typename T>
ORTMODULE_INLINE T direction(const Numbers<T>& c, T p, T first, T second) {
  return fused(c.decay, p, first * c.scale1 / (root(second * c.scale2) + c.epsilon));
}

// The directions of a few elements first, then sums: floats and doubles in one loop would go one by one.
template <typename T>
ORTMODULE_INLINE Squares add_squares(const Numbers<T>& c, const Run<T>& r) {
  constexpr int64_t kFew = 256;
  T way[kFew];
  double ps = 0, ds = 0;
  for (int64_t at = 0; at < r.n; at += kFew) {
    const int64_t n = std::min(kFew, r.n - at);
    const T *const p = r.parameter + at, *const first = r.states[0] + at, *const second = r.states[1] + at;
    for (int64_t i = 0; i < n; ++i) way[i] = direction(c, p[i], first[i], second[i]);
#pragma omp simd reduction(+ : ps, ds)
    for (int64_t i = 0; i < n; ++i) {
      ps += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      ds += static_cast<double>(way[i]) * static_cast<double>(way[i]);
    }
  }
  return {ps, ds};
}

template <typename T>
ORTMODULE_INLINE void move(const Numbers<T>& c, T rate, int64_t n, T* __restrict p, const T* __restrict first,
                           const T* __restrict second) {
  for (int64_t i = 0; i < n; ++i) p[i] = fused(rate, direction(c, p[i], first[i], second[i]), p[i]);
}

ORTMODULE_SIMD Squares squares(const Numbers<float>& c, const Run<float>& r) { return add_squares(c, r); }
ORTMODULE_SIMD Squares squares(const Numbers<double>& c, const Run<double>& r) { return add_squares(c, r); }
ORTMODULE_SIMD void apply(const Numbers<float>& c, float rate, const Run<float>& r) {
  move(c, rate, r.n, r.parameter, r.states[0], r.states[1]);
}
ORTMODULE_SIMD void apply(const Numbers<double>& c, double rate, const Run<double>& r) {
  move(c, rate, r.n, r.parameter, r.states[0], r.states[1]);
}

// The moments of a piece, then its part of both norms: of the states as they are kept.
Squares begin_step(const Prepared& p, int64_t begin, int64_t end) {
  Squares sum;
  in_its_type(p, [&]<typename T>(T) {
    const Numbers<T> numbers(p);
    for_each_run<T>(p, begin, end, {.states = true}, [&](const Run<T>& run) { update_moments(p, 0, run); });
    for_each_run<T>(p, begin, end, {}, [&](const Run<T>& run) {
      const Squares one = squares(numbers, run);
      sum.parameter += one.parameter;
      sum.direction += one.direction;
    });
  });
  return sum;
}

double trust_ratio(const Prepared& p, const Squares& sum) {
  if (!(sum.parameter > 0 && sum.direction > 0)) return 1;
  return std::clamp(std::sqrt(sum.parameter) / std::sqrt(sum.direction), p.setting("ratio_min"),
                    p.setting("ratio_max"));
}

void step_together(const std::vector<Prepared>& parameters) {
  const std::vector<Piece> pieces = pieces_of(parameters);
  std::vector<Squares> parts(pieces.size()), sums(parameters.size());
  for_each_index(pieces.size(), [&](size_t i) {
    parts[i] = begin_step(parameters[pieces[i].parameter], pieces[i].begin, pieces[i].end);
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    sums[pieces[i].parameter].parameter += parts[i].parameter;
    sums[pieces[i].parameter].direction += parts[i].direction;
  }
  for_each_index(pieces.size(), [&](size_t i) {
    const Prepared& p = parameters[pieces[i].parameter];
    const double rate = -p.setting("lr") * trust_ratio(p, sums[pieces[i].parameter]);
    in_its_type(p, [&]<typename T>(T) {
      const Numbers<T> numbers(p);
      for_each_run<T>(p, pieces[i].begin, pieces[i].end, {.parameter = true},
                      [&](const Run<T>& run) { apply(numbers, static_cast<T>(rate), run); });
    });
  });
}

}  // namespace

void lamb_step(const std::vector<Prepared>& parameters) {
  std::vector<Prepared> together;
  int64_t elements = 0;
  for (const Prepared& p : parameters) {
    together.push_back(p);
    elements += p.size;
    if (elements < kBatch) continue;
    step_together(together);
    together.clear();
    elements = 0;
  }
  step_together(together);
}

cuda::LambNumbers lamb_numbers(const Prepared& p) {
  const Numbers<float> c(p);
  return {moment_numbers(p, 0),  c.scale1, c.scale2, c.epsilon, c.decay, -p.setting("lr"), p.setting("ratio_min"),
          p.setting("ratio_max")};
}

}  // namespace ortmodule
