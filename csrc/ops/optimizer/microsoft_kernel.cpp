// Kernels of com.microsoft's optimizers, out of place: the rules of kernels/optimizer on copies.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/optimizer/any_device.h"
#include "kernels/sequence_value.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

bool updates(const KernelContext& c, size_t signal) { return !c.has(signal) || c.double_value(signal) != 0; }
at::Tensor flag(bool value) { return at::full({1}, value, at::TensorOptions(at::kBool)); }

// A weight and both moments in the weight's type, copied, for a step whose number is `t`.
Updated copied(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& first, const at::Tensor& second,
               double t) {
  const auto own = [&](const at::Tensor& x) { return x.to(weight.scalar_type(), false, /*copy=*/true); };
  return {.parameter = own(weight),
          .gradient = gradient,
          .step = at::scalar_tensor(t - 1, at::kDouble),
          .states = {own(first), own(second)}};
}

UpdateGroup moments(const Node& node) {
  return {{{"beta1", node.get_float("alpha", 0.9)},
           {"beta2", node.get_float("beta", 0.999)},
           {"eps", node.get_float("epsilon", 1e-8)}},
          {}};
}

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
  UpdateGroup form = moments(node);
  form.settings["weight_decay"] = node.get_float("weight_decay", 1e-2);
  form.settings["correct_bias"] = node.get_int("correct_bias", 1) != 0;
  form.settings["decay"] = node.get_int("adam_mode", 0) != 0 ? 2 : 1;
  return [form](KernelContext& c) {
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
    UpdateGroup group = form;
    group.settings["lr"] = c.double_value(0);
    for (size_t i = 0; i < n; ++i)
      group.parameters.push_back(copied(weights[i], gradients[i], first[i], second[i], c.double_value(1)));
    update_anywhere("adam", {group});
    Tensors w, m, v;
    for (const Updated& u : group.parameters) {
      w.push_back(u.parameter);
      m.push_back(u.states[0]);
      v.push_back(u.states[1]);
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
  UpdateGroup form = moments(node);
  form.settings["weight_decay"] = node.get_float("lambda", 0);
  form.settings["correct_bias"] = node.get_int("do_bias_correction", 1) != 0;
  form.settings["decay"] = node.get_int("weight_decay_mode", 0) != 0 ? 2 : 1;
  return [form, bound = node.get_float("max_norm_clip", 1)](KernelContext& c) {
    const at::Tensor& w = c.in(2);
    if (!updates(c, 9)) {
      for (const auto& [slot, input] : {std::pair<size_t, size_t>{0, 1}, {1, 4}, {2, 5}, {3, 2}, {4, 3}, {5, 6}})
        if (c.has(input)) c.out(slot, c.in(input));
      return;
    }
    const at::Tensor g = c.in(3).to(w.scalar_type()).div(gradient_scale(c, 7, 8, bound));
    UpdateGroup group = form;
    group.settings["lr"] = c.double_value(0);
    group.parameters.push_back(copied(w, g, c.in(4), c.in(5), c.double_value(1)));
    update_anywhere("adam", {group});
    const Updated& u = group.parameters.front();
    c.out(0, at::add(c.in(1), 1));
    c.out(1, u.states[0].to(c.in(4).scalar_type()));
    c.out(2, u.states[1].to(c.in(5).scalar_type()));
    c.out(3, u.parameter);
    if (c.wants(4)) c.out(4, at::sub(u.parameter, w).to(c.in(3).scalar_type()));
    if (c.wants(5) && c.has(6)) c.out(5, u.parameter.to(c.in(6).scalar_type()));
  };
});

std::vector<double> numbers(const Node& node, const char* name) {
  const AttributeValue* value = node.find_attribute(name);
  const auto* given = value ? std::get_if<std::vector<double>>(value) : nullptr;
  return given ? *given : std::vector<double>{};
}

// The attributes that have a value for each group of inputs.
struct LambGroups {
  std::vector<double> alphas, betas, lambdas, epsilons, bounds;
  explicit LambGroups(const Node& node)
      : alphas(numbers(node, "alpha")),
        betas(numbers(node, "beta")),
        lambdas(numbers(node, "lambda")),
        epsilons(numbers(node, "epsilon")),
        bounds(numbers(node, "max_norm_clip")) {}

  static double of(const std::vector<double>& all, size_t i, double fallback) {
    return i < all.size() ? all[i] : fallback;
  }
  UpdateGroup form(size_t i) const {
    return {{{"beta1", of(alphas, i, 0.9)},
             {"beta2", of(betas, i, 0.999)},
             {"eps", of(epsilons, i, 1e-6)},
             {"weight_decay", of(lambdas, i, 0)}},
            {}};
  }
};

ORTMODULE_KERNEL("com.microsoft", LambOptimizer, "aten", [](const Node& node) -> Kernel {
  const double infinity = std::numeric_limits<double>::infinity();
  const double low = node.get_float("ratio_min", -infinity), high = node.get_float("ratio_max", infinity);
  const bool correct = node.get_int("do_bias_correction", 1) != 0;
  return [=, groups = LambGroups(node)](KernelContext& c) {
    const bool update = updates(c, 0);
    if (c.has(4)) c.out(0, update ? at::add(c.in(4), 1) : c.in(4));
    for (size_t i = 5, number = 0; i + 3 < c.input_count(); i += 5, ++number) {
      if (!c.has(i)) continue;
      if (!update) {
        for (size_t k = 0; k < 5; ++k)
          if (c.has(i + k)) c.out(i + k - 4, c.in(i + k));
        continue;
      }
      const at::Tensor& w = c.in(i);
      const double scale = gradient_scale(c, 1, 2, LambGroups::of(groups.bounds, number, 1));
      UpdateGroup group = groups.form(number);
      group.settings["lr"] = c.double_value(3);
      group.settings["correct_bias"] = correct;
      group.settings["ratio_min"] = low;
      group.settings["ratio_max"] = high;
      const double t = c.has(4) ? c.double_value(4) : 1;
      group.parameters.push_back(copied(w, c.in(i + 1).to(w.scalar_type()).div(scale), c.in(i + 2), c.in(i + 3), t));
      update_anywhere("lamb", {group});
      const Updated& u = group.parameters.front();
      c.out(i - 4, u.parameter);
      if (c.wants(i - 3)) c.out(i - 3, at::sub(u.parameter, w).to(c.in(i + 1).scalar_type()));
      c.out(i - 2, u.states[0].to(c.in(i + 2).scalar_type()));
      c.out(i - 1, u.states[1].to(c.in(i + 3).scalar_type()));
      if (c.has(i + 4)) c.out(i, u.parameter.to(c.in(i + 4).scalar_type()));
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
