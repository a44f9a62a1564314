// ATen kernels of torch.optim's update rules: the calls that torch makes for a parameter, in its order.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/sqrt.h>

#include <cmath>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Rule {
  double decay;
  bool maximize, fused, in_place;
  explicit Rule(const Node& node)
      : decay(node.get_float("weight_decay", 0)),
        maximize(node.get_int("maximize", 0) != 0),
        fused(node.get_int("fused", 0) != 0),
        in_place(node.get_int("in_place", 0) != 0) {}

  // What the new value of input i is written into; undefined where the input is absent.
  at::Tensor target(const KernelContext& c, size_t i) const {
    if (!c.has(i)) return {};
    return in_place ? c.in(i) : c.in(i).clone();
  }
  // What the parameter moves along before momentum; never the gradient that the caller has, where it is changed.
  at::Tensor direction(const KernelContext& c, bool decays) const {
    const at::Tensor gradient = maximize ? at::neg(c.in(2)) : c.in(2);
    return decays ? at::add(gradient, c.in(1), decay) : gradient;
  }
};

// Every tensor fits, and what the rule needs besides is there before the first value is written: nothing is left half
// done.
void check_sizes(const KernelContext& c, const char* rule) {
  for (size_t i = 2; i < c.input_count(); ++i) {
    if (i == 3 || !c.has(i)) continue;
    ORTMODULE_CHECK(c.in(i).sizes() == c.in(1).sizes(), kRuntime, "[", rule, "] input ", i, " is of shape ",
                    c.in(i).sizes(), ", the parameter of ", c.in(1).sizes());
  }
}

std::vector<at::Tensor> list(const at::Tensor& t) {
  return t.defined() ? std::vector<at::Tensor>{t} : std::vector<at::Tensor>{};
}

ORTMODULE_KERNEL("ai.ortmodule", SGD, "aten", [](const Node& node) -> Kernel {
  const double momentum = node.get_float("momentum", 0), dampening = node.get_float("dampening", 0);
  return [=, nesterov = node.get_int("nesterov", 0) != 0, rule = Rule(node)](KernelContext& c) {
    check_sizes(c, "SGD");
    const double rate = c.double_value(0);
    const bool first = !c.has(3) || c.double_value(3) == 0;
    const at::Tensor parameter = rule.target(c, 1), step = rule.target(c, 3);
    const at::Tensor buffer = momentum == 0 ? at::Tensor() : rule.target(c, 4);
    if (rule.fused) {
      at::_fused_sgd_({parameter}, {c.in(2)}, list(buffer), rule.decay, momentum, rate, dampening, nesterov,
                      rule.maximize, momentum != 0 && first);
    } else {
      at::Tensor gradient = rule.direction(c, rule.decay != 0);
      if (momentum != 0) {
        if (first)
          buffer.copy_(gradient);
        else
          buffer.mul_(momentum).add_(gradient, 1 - dampening);
        gradient = nesterov ? at::add(gradient, buffer, momentum) : buffer;
      }
      parameter.add_(gradient, -rate);
    }
    if (step.defined()) step.add_(1);
    c.out(0, parameter);
    c.out(1, step);
    c.out(2, buffer);
  };
});

struct AdamRule : Rule {
  double beta1, beta2, epsilon;
  bool amsgrad, decoupled;
  explicit AdamRule(const Node& node)
      : Rule(node),
        beta1(node.get_float("beta1", 0.9)),
        beta2(node.get_float("beta2", 0.999)),
        epsilon(node.get_float("epsilon", 1e-8)),
        amsgrad(node.get_int("amsgrad", 0) != 0),
        decoupled(node.get_int("decoupled", 0) != 0) {}

  void step_fused(const KernelContext& c, double rate, at::Tensor step, const std::vector<at::Tensor>& targets) const {
    step.add_(1);
    if (!c.in(1).is_cpu()) step = step.to(c.in(1).device());
    const std::vector<at::Tensor> largest = amsgrad ? list(targets[3]) : std::vector<at::Tensor>{};
    if (decoupled)
      at::_fused_adamw_({targets[0]}, {c.in(2)}, {targets[1]}, {targets[2]}, largest, {step}, rate, beta1, beta2, decay,
                        epsilon, amsgrad, maximize);
    else
      at::_fused_adam_({targets[0]}, {c.in(2)}, {targets[1]}, {targets[2]}, largest, {step}, rate, beta1, beta2, decay,
                       epsilon, amsgrad, maximize);
  }

  void step_plain(const KernelContext& c, double rate, const at::Tensor& step, std::vector<at::Tensor> targets) const {
    at::Tensor &parameter = targets[0], &first = targets[1], &second = targets[2], &largest = targets[3];
    const at::Tensor gradient = direction(c, decay != 0 && !decoupled);
    at::Tensor root = at::empty_like(second);
    const double t = c.double_value(3) + 1;
    step.add_(1);
    if (decay != 0 && decoupled) parameter.mul_(1 - rate * decay);
    first.lerp_(gradient, 1 - beta1);
    second.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    // As Python computes it: `**` is pow, also for the root.
    const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
    if (amsgrad) at::maximum_out(largest, largest, second);
    at::sqrt_out(root, amsgrad ? largest : second);
    root.div_(std::pow(correction2, 0.5)).add_(epsilon);
    parameter.addcdiv_(first, root, -(rate / correction1));
  }
};

ORTMODULE_KERNEL("ai.ortmodule", Adam, "aten", [](const Node& node) -> Kernel {
  return [rule = AdamRule(node)](KernelContext& c) {
    check_sizes(c, "Adam");
    const double rate = c.double_value(0);
    const at::Tensor step = rule.target(c, 3);
    const std::vector<at::Tensor> targets{rule.target(c, 1), rule.target(c, 4), rule.target(c, 5), rule.target(c, 6)};
    if (rule.fused)
      rule.step_fused(c, rate, step, targets);
    else
      rule.step_plain(c, rate, step, targets);
    c.out(0, targets[0]);
    c.out(1, step);
    for (size_t i = 1; i < targets.size(); ++i) c.out(i + 1, targets[i]);
  };
});

}  // namespace
}  // namespace ortmodule
