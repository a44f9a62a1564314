// A step of an optimizer over any number of parameters, in place: what ortmodule.optim, training sessions and the
// operators of ops/optimizer share, so that a formula stands in one place.
//
// Parameters, gradients and states keep their memory; nothing is flattened or copied where a tensor is dense.
// Everything is checked before the first value is written: an error changes nothing. CPU tensors only; what is on other
// devices is torch's matter (ortmodule/optim) or that of ATen's calls (ops/optimizer).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

constexpr size_t kMostStates = 3;
// Elements that share a scale where a state is held in 8 bits.
constexpr int64_t kStateBlock = 256;

// A parameter with all that a step reads and writes. Undefined tensors are those that a rule does not have.
//   sgd        states: momentum buffer
//   adam, lamb states: first moment, second moment, largest second moment (adam with `amsgrad`)
//   adafactor  states: variance by row, by column, first moment (with `beta1`); of a vector: variance, none, first
//              moment
struct Updated {
  at::Tensor parameter{};  // float, bfloat16, half or double; complex ones are taken as pairs
  at::Tensor gradient{};   // of the parameter's shape; another type where both compute in float
  at::Tensor step{};       // one float or double: the steps done so far, counted up
  at::Tensor copy{};       // bfloat16 or half: gets the new parameter, rounded
  std::array<at::Tensor, kMostStates> states{};
  std::array<at::Tensor, kMostStates> scales{};  // of a state in uint8: a float for each kStateBlock elements
};

// Settings by torch's names (update.cpp says which a rule reads); what is not there is zero.
struct UpdateGroup {
  std::map<std::string, double, std::less<>> settings;
  std::vector<Updated> parameters;

  double setting(const char* name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? 0 : found->second;
  }
};

// What is done to all gradients first.
struct GradientScale {
  double divisor = 1;    // that of a scaled loss
  bool written = false;  // the divided gradients are left in place of the given ones
};

// One step of `rule`: "sgd", "adam", "lamb" or "adafactor". Throws kInvalidArgument, having changed nothing, for
// tensors that do not belong together or that the rule cannot update. Parameters that share memory are updated one
// after another, in their order.
ORTMODULE_API void update_parameters(const std::string& rule, const std::vector<UpdateGroup>& groups,
                                     const GradientScale& scale);

}  // namespace ortmodule
