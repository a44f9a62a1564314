// Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015), AMSGrad (Reddi et al., On the Convergence of
// Adam and Beyond, 2018) and AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019).
//
// With the roundings of torch.optim's calls: lerp_, mul_, addcmul_, div, add_, addcdiv_; not of sqrt, which torch takes
// from MKL, whose last bit is not always the right one. Where weight decay acts is
// `decay`: 0 adds it to the gradient (Adam), 1 takes it off before the update (torch's AdamW), 2 after it (that of the
// transformers library, whose epsilon stands beside the uncorrected root, too).
#include <cmath>

#include "kernels/optimizer/device_step.h"
#include "kernels/optimizer/exact.h"
#include "kernels/optimizer/rules.h"

namespace ortmodule {
namespace {

template <typename T>
struct MomentNumbers {
  T factor, l2, weight1, rest1, beta2, weight2;
  bool decays, light, amsgrad;  // light: lerp goes from the start where its weight is below a half

  MomentNumbers(const Prepared& p, double decay)
      : factor(static_cast<T>(p.factor)),
        l2(static_cast<T>(decay)),
        weight1(static_cast<T>(1 - p.setting("beta1"))),
        rest1(1 - weight1),
        beta2(static_cast<T>(p.setting("beta2"))),
        weight2(static_cast<T>(1 - p.setting("beta2"))),
        decays(decay != 0),
        light(weight1 < T(0.5)),
        amsgrad(p.setting("amsgrad") != 0) {}
};

template <typename T>
struct Numbers {
  MomentNumbers<T> moments;
  T before, divisor, epsilon, length, after;  // the last two negative
  bool decays_after;

  explicit Numbers(const Prepared& p) : moments(p, p.setting("decay") == 0 ? p.setting("weight_decay") : 0) {
    const double rate = p.setting("lr"), decay = p.setting("weight_decay"), where = p.setting("decay");
    const double correction1 = bias_correction(p, "beta1"), correction2 = bias_correction(p, "beta2");
    decays_after = where == 2 && decay != 0;
    before = static_cast<T>(where == 1 && decay != 0 ? 1 - rate * decay : 1);
    divisor = static_cast<T>(where == 2 ? 1 : std::pow(correction2, 0.5));
    epsilon = static_cast<T>(p.setting("eps"));
    length = static_cast<T>(-(where == 2 ? rate * std::sqrt(correction2) / correction1 : rate / correction1));
    after = static_cast<T>(-rate * decay);
  }
};

// The second moment that the root is taken of.
template <typename T, bool decays, bool light, bool amsgrad>
ORTMODULE_INLINE T moments_of(const MomentNumbers<T>& c, T g, T p, T& first, T& second, T& largest) {
  g = g * c.factor;
  if constexpr (decays) g = fused(c.l2, p, g);
  const T way = g - first;
  first = light ? fused(c.weight1, way, first) : fused(-way, c.rest1, g);
  second = fused(c.weight2 * g, g, second * c.beta2);
  if constexpr (!amsgrad) return second;
  // As at::maximum: NaN where either is.
  largest = second > largest || second != second ? second : largest;
  return largest;
}

template <typename T, bool decays, bool light, bool amsgrad, bool decays_after>
ORTMODULE_INLINE void update(const Numbers<T>& c, int64_t n, T* __restrict p, const T* __restrict g,
                             T* __restrict first, T* __restrict second, T* __restrict largest) {
  for (int64_t i = 0; i < n; ++i) {
    T m = first[i], v = second[i], top{};
    if constexpr (amsgrad) top = largest[i];
    const T seen = moments_of<T, decays, light, amsgrad>(c.moments, g[i], p[i], m, v, top);
    first[i] = m;
    second[i] = v;
    if constexpr (amsgrad) largest[i] = top;
    const T below = root(seen) / c.divisor + c.epsilon;
    T next = p[i] * c.before + c.length * m / below;
    if constexpr (decays_after) next = fused(c.after, next, next);
    p[i] = next;
  }
}

template <typename T, bool decays, bool light, bool amsgrad>
ORTMODULE_INLINE void only_moments(const MomentNumbers<T>& c, int64_t n, const T* __restrict p, const T* __restrict g,
                                   T* __restrict first, T* __restrict second, T* __restrict largest) {
  for (int64_t i = 0; i < n; ++i) {
    T m = first[i], v = second[i], top{};
    if constexpr (amsgrad) top = largest[i];
    moments_of<T, decays, light, amsgrad>(c, g[i], p[i], m, v, top);
    first[i] = m;
    second[i] = v;
    if constexpr (amsgrad) largest[i] = top;
  }
}

// Calls work with the three flags as constants.
template <typename T, typename Work>
ORTMODULE_INLINE void by_flags(const MomentNumbers<T>& c, const Work& work) {
  const auto by_amsgrad = [&](auto decays, auto light) ORTMODULE_INLINE_LAMBDA {
    c.amsgrad ? work(decays, light, std::true_type()) : work(decays, light, std::false_type());
  };
  const auto by_light = [&](auto decays) ORTMODULE_INLINE_LAMBDA {
    c.light ? by_amsgrad(decays, std::true_type()) : by_amsgrad(decays, std::false_type());
  };
  c.decays ? by_light(std::true_type()) : by_light(std::false_type());
}

template <typename T>
ORTMODULE_INLINE void apply_all(const Numbers<T>& c, const Run<T>& r) {
  by_flags(c.moments, [&](auto decays, auto light, auto amsgrad) ORTMODULE_INLINE_LAMBDA {
    if (c.decays_after)
      update<T, decays, light, amsgrad, true>(c, r.n, r.parameter, r.gradient, r.states[0], r.states[1], r.states[2]);
    else
      update<T, decays, light, amsgrad, false>(c, r.n, r.parameter, r.gradient, r.states[0], r.states[1], r.states[2]);
  });
}
template <typename T>
ORTMODULE_INLINE void apply_moments(const MomentNumbers<T>& c, const Run<T>& r) {
  by_flags(c, [&](auto decays, auto light, auto amsgrad) ORTMODULE_INLINE_LAMBDA {
    only_moments<T, decays, light, amsgrad>(c, r.n, r.parameter, r.gradient, r.states[0], r.states[1], r.states[2]);
  });
}

ORTMODULE_SIMD void apply(const Numbers<float>& c, const Run<float>& r) { apply_all(c, r); }
ORTMODULE_SIMD void apply(const Numbers<double>& c, const Run<double>& r) { apply_all(c, r); }
ORTMODULE_SIMD void apply(const MomentNumbers<float>& c, const Run<float>& r) { apply_moments(c, r); }
ORTMODULE_SIMD void apply(const MomentNumbers<double>& c, const Run<double>& r) { apply_moments(c, r); }

}  // namespace

double bias_correction(const Prepared& p, const char* beta) {
  return p.setting("correct_bias") == 0 ? 1 : 1 - std::pow(p.setting(beta), p.step);
}

void update_moments(const Prepared& p, double l2, const Run<float>& run) { apply(MomentNumbers<float>(p, l2), run); }
void update_moments(const Prepared& p, double l2, const Run<double>& run) { apply(MomentNumbers<double>(p, l2), run); }

void adam_step(const std::vector<Prepared>& parameters) {
  step_by_elements(parameters, []<typename T>(const Prepared& p, T) {
    return [numbers = Numbers<T>(p)](const Run<T>& run) { apply(numbers, run); };
  });
}

cuda::MomentNumbers moment_numbers(const Prepared& p, double l2) {
  const MomentNumbers<float> c(p, l2);
  return {c.factor, c.l2, c.weight1, c.rest1, c.beta2, c.weight2};
}

cuda::AdamNumbers adam_numbers(const Prepared& p) {
  const Numbers<float> c(p);
  const double l2 = p.setting("decay") == 0 ? p.setting("weight_decay") : 0;
  return {moment_numbers(p, l2), c.before, c.divisor, c.epsilon, c.length, c.decays_after ? c.after : 0.0F};
}

}  // namespace ortmodule
