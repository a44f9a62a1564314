// An optimizer's update of one parameter: a graph that takes the learning rate, the parameter, its gradient and its
// states, and gives new ones.
//
// Inputs are `learning_rate` (double), `parameter`, `gradient` and the states; each output `new_<input>` takes the
// place of that input. Operators with `in_place` write it there themselves; what others give is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "session/session.h"

namespace ortmodule {

class UpdateRule {
 public:
  // Throws kInvalidGraph for a graph with other inputs than these.
  UpdateRule(const std::string& path, const std::vector<std::string>& states, c10::Device device,
             bool allow_aten_operators);

  // Writes `parameter` and `states`.
  void apply(double rate, const at::Tensor& parameter, const at::Tensor& gradient,
             const std::vector<at::Tensor>& states) const;

 private:
  Session session_;
  std::vector<size_t> from_;    // per graph input, its place among rate, parameter, gradient and states
  std::vector<size_t> target_;  // per graph output, the same
};

}  // namespace ortmodule
