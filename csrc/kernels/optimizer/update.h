// A step of an optimizer over any number of parameters, in place: what ortmodule.optim, training sessions and the
// operators of ops/optimizer share, so that a formula stands in one place.
//
// Parameters, gradients and states keep their memory; nothing is flattened or copied where a tensor is dense.
// Everything is checked before the first value is written: an error changes nothing. On a device that has our CUDA
// kernels "sgd", "adam" and "lamb" are launches over lists of parameters (device_step.h), and the host waits for none;
// what else lies there is torch's matter (ortmodule/optim) or that of ATen's calls (ops/optimizer).
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
  at::Tensor step{};       // one float or double, or a float on the device: the steps done so far, counted up
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
  // One float each on a device, for parameters there alone; `found_inf` only where steps are counted there, too.
  at::Tensor divisor_on_device{};
  at::Tensor found_inf{};  // not 0: the step is none
};

// Whether update_parameters takes parameters on such devices ("cuda"). Throws kRuntime where the kernels do not load.
ORTMODULE_API bool updates_on(const std::string& device_type);

// One step of `rule`: "sgd", "adam", "lamb" or "adafactor". Throws kInvalidArgument, having changed nothing, for
// tensors that do not belong together or that the rule cannot update. Parameters that share memory are updated one
// after another, in their order.
ORTMODULE_API void update_parameters(const std::string& rule, const std::vector<UpdateGroup>& groups,
                                     const GradientScale& scale);

}  // namespace ortmodule
