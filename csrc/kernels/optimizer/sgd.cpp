// torch.optim.SGD (Sutskever et al., On the importance of initialization and momentum in deep learning, 2013), with the
// roundings of torch's calls: add_ with a factor is one rounding, mul_ another.
#include "kernels/optimizer/device_step.h"
#include "kernels/optimizer/exact.h"
#include "kernels/optimizer/rules.h"

namespace ortmodule {
namespace {

enum class Momentum { kNone, kFirst, kRunning };

template <typename T>
struct Numbers {
  T factor, decay, momentum, rest, rate;  // rest: 1 - dampening; rate: the negative one
  bool decays, nesterov;
  Momentum kind;

  explicit Numbers(const Prepared& p)
      : factor(static_cast<T>(p.factor)),
        decay(static_cast<T>(p.setting("weight_decay"))),
        momentum(static_cast<T>(p.setting("momentum"))),
        rest(static_cast<T>(1 - p.setting("dampening"))),
        rate(static_cast<T>(-p.setting("lr"))),
        decays(p.setting("weight_decay") != 0),
        nesterov(p.setting("nesterov") != 0),
        kind(p.setting("momentum") == 0 ? Momentum::kNone
             : p.setting("first") != 0  ? Momentum::kFirst
                                        : Momentum::kRunning) {}
};

template <typename T, bool decays, Momentum kind, bool nesterov>
ORTMODULE_INLINE void update(const Numbers<T>& c, int64_t n, T* __restrict p, const T* __restrict gradient,
                             T* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) {
    T g = gradient[i] * c.factor;
    if constexpr (decays) g = fused(c.decay, p[i], g);
    if constexpr (kind != Momentum::kNone) {
      T kept = g;
      if constexpr (kind == Momentum::kRunning) kept = fused(c.rest, g, buffer[i] * c.momentum);
      buffer[i] = kept;
      g = nesterov ? fused(c.momentum, kept, g) : kept;
    }
    p[i] = fused(c.rate, g, p[i]);
  }
}

template <typename T, bool decays, Momentum kind>
ORTMODULE_INLINE void by_nesterov(const Numbers<T>& c, const Run<T>& r) {
  if (c.nesterov && kind != Momentum::kNone)
    update<T, decays, kind, true>(c, r.n, r.parameter, r.gradient, r.states[0]);
  else
    update<T, decays, kind, false>(c, r.n, r.parameter, r.gradient, r.states[0]);
}

template <typename T, bool decays>
ORTMODULE_INLINE void by_momentum(const Numbers<T>& c, const Run<T>& r) {
  if (c.kind == Momentum::kNone)
    by_nesterov<T, decays, Momentum::kNone>(c, r);
  else if (c.kind == Momentum::kFirst)
    by_nesterov<T, decays, Momentum::kFirst>(c, r);
  else
    by_nesterov<T, decays, Momentum::kRunning>(c, r);
}

ORTMODULE_SIMD void apply(const Numbers<float>& c, const Run<float>& r) {
  c.decays ? by_momentum<float, true>(c, r) : by_momentum<float, false>(c, r);
}
ORTMODULE_SIMD void apply(const Numbers<double>& c, const Run<double>& r) {
  c.decays ? by_momentum<double, true>(c, r) : by_momentum<double, false>(c, r);
}

}  // namespace

void sgd_step(const std::vector<Prepared>& parameters) {
  step_by_elements(parameters, []<typename T>(const Prepared& p, T) {
    return [numbers = Numbers<T>(p)](const Run<T>& run) { apply(numbers, run); };
  });
}

cuda::SgdNumbers sgd_numbers(const Prepared& p) {
  const Numbers<float> c(p);
  return {c.factor, c.decay, c.momentum, c.rest, c.rate, c.kind == Momentum::kFirst, c.nesterov};
}

}  // namespace ortmodule
