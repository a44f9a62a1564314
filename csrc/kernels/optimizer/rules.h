// The rules that update_parameters knows. A file each; formulas stand there and nowhere else.
#pragma once

#include <vector>

#include "kernels/optimizer/runs.h"

namespace ortmodule {

// The parameters share no memory and are updated side by side.
void sgd_step(const std::vector<Prepared>& parameters);
void adam_step(const std::vector<Prepared>& parameters);
void lamb_step(const std::vector<Prepared>& parameters);
void adafactor_step(const std::vector<Prepared>& parameters);

// 1 - beta^step, or 1 where the group does not correct the bias; pow of doubles, as Python has it.
double bias_correction(const Prepared& p, const char* beta);

// Adam's moments, which LAMB has too. `l2` is weight decay that is part of the gradient.
void update_moments(const Prepared& p, double l2, const Run<float>& run);
void update_moments(const Prepared& p, double l2, const Run<double>& run);

}  // namespace ortmodule
