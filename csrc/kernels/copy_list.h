// Copies of many tensors, those of a device with our kernels in one launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ortmodule {

// to[i].copy_(from[i]), in this order wherever one of `to` shares memory with another tensor. `counts[i]`: whether
// autograd is to know that to[i] has changed.
void copy_list(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to, const std::vector<char>& counts);

}  // namespace ortmodule
