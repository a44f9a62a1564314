// Steps of parameters on a device, by our CUDA kernels: a launch for a list of them (step.cu).
//
// Parameters of 16 bits with everything in their type, and floats with float states, gradients of any type and 16-bit
// copies. Not here: 8-bit states, stochastic rounding, doubles, complex numbers, Adafactor.
#pragma once

#include <string>
#include <vector>

#include "kernels/optimizer/runs.h"
#include "kernels/optimizer/step_launch.h"

namespace ortmodule {

// What keeps the device from updating such a parameter; empty: nothing does.
std::string refused_on_device(const std::string& rule, const UpdateGroup& group, const Updated& parameter);

// One step of `rule` for parameters of one device, whose tensors were checked and lie in one order.
void device_step(const std::string& rule, const std::vector<const Prepared*>& parameters, const GradientScale& scale);

// A rule's numbers in float, as its step on the CPU has them.
cuda::SgdNumbers sgd_numbers(const Prepared& p);
cuda::MomentNumbers moment_numbers(const Prepared& p, double l2);
cuda::AdamNumbers adam_numbers(const Prepared& p);
cuda::LambNumbers lamb_numbers(const Prepared& p);

}  // namespace ortmodule
