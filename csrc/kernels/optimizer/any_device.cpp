#include "kernels/optimizer/any_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
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

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace ortmodule {
namespace {

bool is_native(const at::Tensor& t) {
  return !t.defined() || (t.is_cpu() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble));
}

// What the parameter moves along before momentum; never the gradient that the caller has, where it is changed.
at::Tensor direction(const UpdateGroup& group, const Updated& u, bool decays) {
  const at::Tensor gradient = group.setting("maximize") != 0 ? at::neg(u.gradient) : u.gradient;
  return decays ? at::add(gradient, u.parameter, group.setting("weight_decay")) : gradient;
}

void sgd(const UpdateGroup& group, const Updated& u) {
  const double momentum = group.setting("momentum");
  at::Tensor gradient = direction(group, u, group.setting("weight_decay") != 0), buffer = u.states[0];
  if (momentum != 0) {
    if (group.setting("first") != 0)
      buffer.copy_(gradient);
    else
      buffer.mul_(momentum).add_(gradient, 1 - group.setting("dampening"));
    gradient = group.setting("nesterov") != 0 ? at::add(gradient, buffer, momentum) : buffer;
  }
  u.parameter.add_(gradient, -group.setting("lr"));
}

struct Corrections {
  double first = 1, second = 1;
  Corrections(const UpdateGroup& group, double t) {
    if (group.setting("correct_bias") == 0) return;
    first = 1 - std::pow(group.setting("beta1"), t);
    second = 1 - std::pow(group.setting("beta2"), t);
  }
};

void update_moments(const UpdateGroup& group, const Updated& u, const at::Tensor& gradient) {
  u.states[0].lerp_(gradient, 1 - group.setting("beta1"));
  u.states[1].mul_(group.setting("beta2")).addcmul_(gradient, gradient, 1 - group.setting("beta2"));
}

void adam(const UpdateGroup& group, const Updated& u) {
  const double rate = group.setting("lr"), decay = group.setting("weight_decay"), where = group.setting("decay");
  const at::Tensor gradient = direction(group, u, decay != 0 && where == 0);
  const Corrections corrections(group, u.step.item<double>() + 1);
  if (decay != 0 && where == 1) u.parameter.mul_(1 - rate * decay);
  update_moments(group, u, gradient);
  at::Tensor below = at::empty_like(u.states[1]), largest = u.states[2];
  if (largest.defined()) at::maximum_out(largest, largest, u.states[1]);
  at::sqrt_out(below, largest.defined() ? largest : u.states[1]);
  // As Python computes it: `**` is pow, also for the root.
  if (where != 2) below.div_(std::pow(corrections.second, 0.5));
  const double length =
      where == 2 ? rate * std::sqrt(corrections.second) / corrections.first : rate / corrections.first;
  u.parameter.addcdiv_(u.states[0], below.add_(group.setting("eps")), -length);
  if (decay != 0 && where == 2) u.parameter.add_(u.parameter, -rate * decay);
}

void lamb(const UpdateGroup& group, const Updated& u) {
  update_moments(group, u, direction(group, u, false));
  const Corrections corrections(group, u.step.item<double>() + 1);
  at::Tensor way = u.states[0].div(corrections.first);
  way.div_(u.states[1].div(corrections.second).sqrt_().add_(group.setting("eps")));
  way.add_(u.parameter, group.setting("weight_decay"));
  const double size = u.parameter.norm().item<double>(), length = way.norm().item<double>();
  const double low = group.setting("ratio_min"), high = group.setting("ratio_max");
  const double ratio = size > 0 && length > 0 ? std::clamp(size / length, low, high) : 1;
  u.parameter.add_(way, -group.setting("lr") * ratio);
}

}  // namespace

void update_anywhere(const std::string& rule, const std::vector<UpdateGroup>& groups) {
  bool native = rule == "sgd";
  for (const UpdateGroup& group : groups)
    for (const Updated& u : group.parameters) {
      for (const at::Tensor* t : {&u.parameter, &u.gradient, &u.copy}) native = native && is_native(*t);
      for (const at::Tensor& state : u.states) native = native && is_native(state);
    }
  if (native) return update_parameters(rule, groups, {});
  const auto step = rule == "sgd" ? sgd : rule == "adam" ? adam : lamb;
  const at::NoGradGuard no_grad;
  for (const UpdateGroup& group : groups)
    for (const Updated& u : group.parameters) {
      step(group, u);
      if (u.step.defined()) u.step.add_(1);
    }
}

}  // namespace ortmodule
