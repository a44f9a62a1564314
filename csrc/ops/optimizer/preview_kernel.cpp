// ATen kernels of Adagrad, Adam and Momentum: the standard's equations, out of place.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <cmath>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// The gradient of the loss plus norm_coefficient / 2 |x|^2.
at::Tensor regularized(const at::Tensor& x, const at::Tensor& g, double coefficient) {
  return coefficient == 0 ? g : at::add(g, x, coefficient);
}

ORTMODULE_KERNEL("ai.onnx.preview.training", Adagrad, "aten", [](const Node& node) -> Kernel {
  const double norm = node.get_float("norm_coefficient", 0), decay = node.get_float("decay_factor", 0),
               epsilon = node.get_float("epsilon", 1e-6);
  return [=](KernelContext& c) {
    const double rate = c.double_value(0) / (1 + c.double_value(1) * decay);
    const size_t n = (c.input_count() - 2) / 3;
    for (size_t i = 0; i < n; ++i) {
      const at::Tensor &x = c.in(2 + i), &h = c.in(2 + 2 * n + i);
      const at::Tensor g = regularized(x, c.in(2 + n + i), norm);
      const at::Tensor accumulated = at::add(h, at::mul(g, g));
      c.out(i, at::add(x, g.div(at::sqrt(accumulated).add_(epsilon)), -rate));
      c.out(n + i, accumulated);
    }
  };
});

ORTMODULE_KERNEL("ai.onnx.preview.training", Adam, "aten", [](const Node& node) -> Kernel {
  const double norm = node.get_float("norm_coefficient", 0), post = node.get_float("norm_coefficient_post", 0),
               alpha = node.get_float("alpha", 0.9), beta = node.get_float("beta", 0.999),
               epsilon = node.get_float("epsilon", 1e-6);
  return [=](KernelContext& c) {
    const double t = c.double_value(1);
    const double correction = t > 0 ? std::sqrt(1 - std::pow(beta, t)) / (1 - std::pow(alpha, t)) : 1;
    const double rate = c.double_value(0) * correction;
    const size_t n = (c.input_count() - 2) / 4;
    for (size_t i = 0; i < n; ++i) {
      const at::Tensor &x = c.in(2 + i), &v = c.in(2 + 2 * n + i), &h = c.in(2 + 3 * n + i);
      const at::Tensor g = regularized(x, c.in(2 + n + i), norm);
      const at::Tensor first = at::add(at::mul(v, alpha), g, 1 - alpha);
      const at::Tensor second = at::add(at::mul(h, beta), at::mul(g, g), 1 - beta);
      at::Tensor next = at::add(x, first.div(at::sqrt(second).add_(epsilon)), -rate);
      c.out(i, post == 0 ? next : next.mul_(1 - post));
      c.out(n + i, first);
      c.out(2 * n + i, second);
    }
  };
});

ORTMODULE_KERNEL("ai.onnx.preview.training", Momentum, "aten", [](const Node& node) -> Kernel {
  const double norm = node.get_float("norm_coefficient", 0), alpha = node.get_float("alpha", 0),
               beta = node.get_float("beta", 0);
  return [=, nesterov = node.get_string("mode", "standard") == "nesterov"](KernelContext& c) {
    const double rate = c.double_value(0), weight = c.double_value(1) > 0 ? beta : 1;
    const size_t n = (c.input_count() - 2) / 3;
    for (size_t i = 0; i < n; ++i) {
      const at::Tensor &x = c.in(2 + i), &v = c.in(2 + 2 * n + i);
      const at::Tensor g = regularized(x, c.in(2 + n + i), norm);
      const at::Tensor momentum = at::add(at::mul(v, alpha), g, weight);
      c.out(i, at::add(x, nesterov ? at::add(g, momentum, alpha) : momentum, -rate));
      c.out(n + i, momentum);
    }
  };
});

}  // namespace
}  // namespace ortmodule
