// ATen kernels of com.microsoft's optimizers, out of place.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/sequence_value.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

bool updates(const KernelContext& c, size_t signal) { return !c.has(signal) || c.double_value(signal) != 0; }
at::Tensor flag(bool value) { return at::full({1}, value, at::TensorOptions(at::kBool)); }

struct Moments {
  double alpha, beta, epsilon;
  Moments(const Node& node, double fallback)
      : alpha(node.get_float("alpha", 0.9)),
        beta(node.get_float("beta", 0.999)),
        epsilon(node.get_float("epsilon", fallback)) {}
  Moments(double alpha, double beta, double epsilon) : alpha(alpha), beta(beta), epsilon(epsilon) {}
  at::Tensor first(const at::Tensor& m, const at::Tensor& g) const { return at::add(at::mul(m, alpha), g, 1 - alpha); }
  at::Tensor second(const at::Tensor& m, const at::Tensor& g) const {
    return at::add(at::mul(m, beta), at::mul(g, g), 1 - beta);
  }
};

const Tensors& list(const KernelContext& c, size_t i, size_t size, const char* op) {
  const Tensors& elements = sequence_elements(c.in(i));
  ORTMODULE_CHECK(elements.size() == size, kRuntime, "[", op, "] input ", i, " holds ", elements.size(),
                  " tensors, the weights are ", size);
  return elements;
}
at::Tensor sequence_like(Tensors elements, const at::Tensor& like) {
  return make_sequence(std::move(elements), sequence_element_type(like));
}

ORTMODULE_KERNEL("com.microsoft", AdamWOptimizer, "aten", [](const Node& node) -> Kernel {
  const double decay = node.get_float("weight_decay", 1e-2);
  const bool correct = node.get_int("correct_bias", 1) != 0, after = node.get_int("adam_mode", 0) != 0;
  return [=, moments = Moments(node, 1e-8)](KernelContext& c) {
    c.out(0, flag(updates(c, 6)));
    const Tensors& weights = sequence_elements(c.in(2));
    const size_t n = weights.size();
    const Tensors &gradients = list(c, 3, n, "AdamWOptimizer"), &first = list(c, 4, n, "AdamWOptimizer"),
                  &second = list(c, 5, n, "AdamWOptimizer");
    if (!updates(c, 6)) {
      c.out(1, c.in(2));
      c.out(2, c.in(4));
      return c.out(3, c.in(5));
    }
    const double rate = c.double_value(0), t = c.double_value(1);
    const double alpha = correct ? 1 - std::pow(moments.alpha, t) : 1,
                 beta = correct ? 1 - std::pow(moments.beta, t) : 1;
    Tensors w(n), m(n), v(n);
    for (size_t i = 0; i < n; ++i) {
      m[i] = moments.first(first[i], gradients[i]);
      v[i] = moments.second(second[i], gradients[i]);
      if (after) {
        w[i] = at::add(weights[i], m[i].div(v[i].sqrt().add_(moments.epsilon)), -rate * std::sqrt(beta) / alpha);
        w[i] = w[i].mul_(1 - rate * decay);
      } else {
        w[i] = at::add(at::mul(weights[i], 1 - rate * decay),
                       m[i].div(v[i].sqrt().div_(std::sqrt(beta)).add_(moments.epsilon)), -rate / alpha);
      }
    }
    c.out(1, sequence_like(std::move(w), c.in(2)));
    c.out(2, sequence_like(std::move(m), c.in(4)));
    c.out(3, sequence_like(std::move(v), c.in(5)));
  };
});

ORTMODULE_KERNEL("com.microsoft", SGDOptimizerV2, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    c.out(0, flag(updates(c, 3)));
    if (!updates(c, 3)) return c.out(1, c.in(1));
    const Tensors& weights = sequence_elements(c.in(1));
    const Tensors& gradients = list(c, 2, weights.size(), "SGDOptimizerV2");
    Tensors next;
    for (size_t i = 0; i < weights.size(); ++i) next.push_back(at::add(weights[i], gradients[i], -c.double_value(0)));
    c.out(1, sequence_like(std::move(next), c.in(1)));
  };
});

ORTMODULE_KERNEL("com.microsoft", SGDOptimizer, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const double rate = c.double_value(0);
    c.out(0, at::add(c.in(1), c.in(2), -rate));
    if (c.wants(1)) c.out(1, at::mul(c.in(2), -rate));
  };
});

// What gradients are divided by: the loss's scale, and what brings a norm (of scaled gradients) down to `bound`.
double gradient_scale(const KernelContext& c, size_t loss_scale, size_t norm, double bound) {
  const double scale = c.has(loss_scale) ? c.double_value(loss_scale) : 1;
  const double whole = c.has(norm) ? c.double_value(norm) : 0;
  return c.has(norm) && whole > scale * bound ? whole / bound : scale;
}

ORTMODULE_KERNEL("com.microsoft", AdamOptimizer, "aten", [](const Node& node) -> Kernel {
  const double lambda = node.get_float("lambda", 0), bound = node.get_float("max_norm_clip", 1);
  const bool correct = node.get_int("do_bias_correction", 1) != 0, after = node.get_int("weight_decay_mode", 0) != 0;
  return [=, moments = Moments(node, 1e-8)](KernelContext& c) {
    const at::Tensor& w = c.in(2);
    if (!updates(c, 9)) {
      for (const auto& [slot, input] : {std::pair<size_t, size_t>{0, 1}, {1, 4}, {2, 5}, {3, 2}, {4, 3}, {5, 6}})
        if (c.has(input)) c.out(slot, c.in(input));
      return;
    }
    const double rate = c.double_value(0), t = c.double_value(1);
    const double alpha = correct ? 1 - std::pow(moments.alpha, t) : 1,
                 beta = correct ? 1 - std::pow(moments.beta, t) : 1;
    const at::Tensor g = c.in(3).to(w.scalar_type()).div(gradient_scale(c, 7, 8, bound));
    const at::Tensor m = moments.first(c.in(4).to(w.scalar_type()), g),
                     v = moments.second(c.in(5).to(w.scalar_type()), g);
    at::Tensor change;
    if (after) {
      change = m.div(v.sqrt().add_(moments.epsilon)).mul_(-rate * std::sqrt(beta) / alpha);
      change = at::add(change, at::add(w, change), -rate * lambda);
    } else {
      change = m.div(alpha).div_(v.div(beta).sqrt_().add_(moments.epsilon)).add_(w, lambda).mul_(-rate);
    }
    const at::Tensor next = at::add(w, change);
    c.out(0, at::add(c.in(1), 1));
    c.out(1, m.to(c.in(4).scalar_type()));
    c.out(2, v.to(c.in(5).scalar_type()));
    c.out(3, next);
    if (c.wants(4)) c.out(4, change.to(c.in(3).scalar_type()));
    if (c.wants(5) && c.has(6)) c.out(5, next.to(c.in(6).scalar_type()));
  };
});

ORTMODULE_KERNEL("com.microsoft", LambOptimizer, "aten", [](const Node& node) -> Kernel {
  const auto list_of = [&](const char* name) {
    const AttributeValue* value = node.find_attribute(name);
    const auto* given = value ? std::get_if<std::vector<double>>(value) : nullptr;
    return given ? *given : std::vector<double>{};
  };
  const std::vector<double> alphas = list_of("alpha"), betas = list_of("beta"), lambdas = list_of("lambda"),
                            epsilons = list_of("epsilon"), bounds = list_of("max_norm_clip");
  const double infinity = std::numeric_limits<double>::infinity();
  const double low = node.get_float("ratio_min", -infinity), high = node.get_float("ratio_max", infinity);
  const bool correct = node.get_int("do_bias_correction", 1) != 0;
  return [=](KernelContext& c) {
    const bool update = updates(c, 0);
    const double t = c.has(4) ? c.double_value(4) : 1;
    if (c.has(4)) c.out(0, update ? at::add(c.in(4), 1) : c.in(4));
    const auto of = [](const std::vector<double>& all, size_t i, double fallback) {
      return i < all.size() ? all[i] : fallback;
    };
    for (size_t i = 5, group = 0; i + 3 < c.input_count(); i += 5, ++group) {
      if (!c.has(i)) continue;
      if (!update) {
        for (size_t k = 0; k < 5; ++k)
          if (c.has(i + k)) c.out(i + k - 4, c.in(i + k));
        continue;
      }
      const at::Tensor& w = c.in(i);
      const auto type = w.scalar_type();
      const Moments moments(of(alphas, group, 0.9), of(betas, group, 0.999), of(epsilons, group, 1e-6));
      const at::Tensor g = c.in(i + 1).to(type).div(gradient_scale(c, 1, 2, of(bounds, group, 1)));
      const at::Tensor m = moments.first(c.in(i + 2).to(type), g), v = moments.second(c.in(i + 3).to(type), g);
      const double alpha = correct ? 1 - std::pow(moments.alpha, t) : 1,
                   beta = correct ? 1 - std::pow(moments.beta, t) : 1;
      const at::Tensor direction =
          m.div(alpha).div_(v.div(beta).sqrt_().add_(moments.epsilon)).add_(w, of(lambdas, group, 0));
      const double weight_norm = w.norm().item<double>(), norm = direction.norm().item<double>();
      const double ratio = weight_norm > 0 && norm > 0 ? std::clamp(weight_norm / norm, low, high) : 1;
      const at::Tensor change = at::mul(direction, -c.double_value(3) * ratio), next = at::add(w, change);
      c.out(i - 4, next);
      if (c.wants(i - 3)) c.out(i - 3, change.to(c.in(i + 1).scalar_type()));
      c.out(i - 2, m.to(c.in(i + 2).scalar_type()));
      c.out(i - 1, v.to(c.in(i + 3).scalar_type()));
      if (c.has(i + 4)) c.out(i, next.to(c.in(i + 4).scalar_type()));
    }
  };
});

ORTMODULE_KERNEL("com.microsoft", PassThrough, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    for (size_t i = 0; i < c.input_count(); ++i) c.out(i, c.in(i));
  };
});

}  // namespace
}  // namespace ortmodule
