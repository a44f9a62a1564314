// Steps of optimizers wherever the tensors are: what the operators of ops/optimizer run.
#pragma once

#include <string>
#include <vector>

#include "kernels/optimizer/update.h"

namespace ortmodule {

// "sgd", "adam" and "lamb" by ATen's calls, tensor by tensor, in the order that torch.optim makes them: on every
// device, and with its bits: 16-bit numbers are rounded by each call, roots are ATen's, whose last bit is not always
// the right one. update_parameters where that gives the same bits: "sgd" of floats and doubles on the CPU.
void update_anywhere(const std::string& rule, const std::vector<UpdateGroup>& groups);

}  // namespace ortmodule
