// Kernels of torch.optim's update rules, which are those of ortmodule.optim (kernels/optimizer), or torch's own fused
// ones where a node asks for them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/optimizer/any_device.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Rule {
  UpdateGroup group;  // of a parameter that each step brings
  bool fused, in_place;
  explicit Rule(const Node& node) : fused(node.get_int("fused", 0) != 0), in_place(node.get_int("in_place", 0) != 0) {
    group.settings["weight_decay"] = node.get_float("weight_decay", 0);
    group.settings["maximize"] = static_cast<double>(node.get_int("maximize", 0));
  }

  bool is_on(const char* name) const { return group.setting(name) != 0; }

  // What the new value of input i is written into; undefined where the input is absent.
  at::Tensor target(const KernelContext& c, size_t i) const {
    if (!c.has(i)) return {};
    return in_place ? c.in(i) : c.in(i).clone();
  }

  void step(const char* name, double rate, Updated one, bool first = false) const {
    UpdateGroup now = group;
    now.settings["lr"] = rate;
    now.settings["first"] = first;
    now.parameters.push_back(std::move(one));
    update_anywhere(name, {now});
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

struct SgdRule : Rule {
  explicit SgdRule(const Node& node) : Rule(node) {
    for (const char* name : {"momentum", "dampening"}) group.settings[name] = node.get_float(name, 0);
    group.settings["nesterov"] = static_cast<double>(node.get_int("nesterov", 0));
  }

  void step_fused(const KernelContext& c, double rate, bool first, at::Tensor parameter, at::Tensor buffer) const {
    at::_fused_sgd_({parameter}, {c.in(2)}, list(buffer), group.setting("weight_decay"), group.setting("momentum"),
                    rate, group.setting("dampening"), is_on("nesterov"), is_on("maximize"), buffer.defined() && first);
  }
};

ORTMODULE_KERNEL("ai.ortmodule", SGD, "aten", [](const Node& node) -> Kernel {
  return [rule = SgdRule(node)](KernelContext& c) {
    check_sizes(c, "SGD");
    const double rate = c.double_value(0);
    const bool first = !c.has(3) || c.double_value(3) == 0;
    const at::Tensor parameter = rule.target(c, 1), step = rule.target(c, 3);
    const at::Tensor buffer = rule.is_on("momentum") ? rule.target(c, 4) : at::Tensor();
    if (rule.fused) {
      rule.step_fused(c, rate, first, parameter, buffer);
      if (step.defined()) step.add_(1);
    } else {
      rule.step("sgd", rate, {.parameter = parameter, .gradient = c.in(2), .step = step, .states = {buffer}}, first);
    }
    c.out(0, parameter);
    c.out(1, step);
    c.out(2, buffer);
  };
});

struct AdamRule : Rule {
  explicit AdamRule(const Node& node) : Rule(node) {
    group.settings["beta1"] = node.get_float("beta1", 0.9);
    group.settings["beta2"] = node.get_float("beta2", 0.999);
    group.settings["eps"] = node.get_float("epsilon", 1e-8);
    group.settings["amsgrad"] = static_cast<double>(node.get_int("amsgrad", 0));
    group.settings["decay"] = static_cast<double>(node.get_int("decoupled", 0));
    group.settings["correct_bias"] = 1;
  }

  void step_fused(const KernelContext& c, double rate, at::Tensor step, const std::vector<at::Tensor>& targets) const {
    step.add_(1);
    if (!c.in(1).is_cpu()) step = step.to(c.in(1).device());
    const std::vector<at::Tensor> largest = is_on("amsgrad") ? list(targets[3]) : std::vector<at::Tensor>{};
    const double beta1 = group.setting("beta1"), beta2 = group.setting("beta2"), epsilon = group.setting("eps");
    const double decay = group.setting("weight_decay");
    if (is_on("decay"))
      at::_fused_adamw_({targets[0]}, {c.in(2)}, {targets[1]}, {targets[2]}, largest, {step}, rate, beta1, beta2, decay,
                        epsilon, is_on("amsgrad"), is_on("maximize"));
    else
      at::_fused_adam_({targets[0]}, {c.in(2)}, {targets[1]}, {targets[2]}, largest, {step}, rate, beta1, beta2, decay,
                       epsilon, is_on("amsgrad"), is_on("maximize"));
  }
};

ORTMODULE_KERNEL("ai.ortmodule", Adam, "aten", [](const Node& node) -> Kernel {
  return [rule = AdamRule(node)](KernelContext& c) {
    check_sizes(c, "Adam");
    const double rate = c.double_value(0);
    const at::Tensor step = rule.target(c, 3);
    const std::vector<at::Tensor> targets{rule.target(c, 1), rule.target(c, 4), rule.target(c, 5), rule.target(c, 6)};
    if (rule.fused) {
      rule.step_fused(c, rate, step, targets);
    } else {
      const at::Tensor largest = rule.is_on("amsgrad") ? targets[3] : at::Tensor();
      rule.step(
          "adam", rate,
          {.parameter = targets[0], .gradient = c.in(2), .step = step, .states = {targets[1], targets[2], largest}});
    }
    c.out(0, targets[0]);
    c.out(1, step);
    for (size_t i = 1; i < targets.size(); ++i) c.out(i + 1, targets[i]);
  };
});

}  // namespace
}  // namespace ortmodule
