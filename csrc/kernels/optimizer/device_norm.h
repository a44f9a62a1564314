// What gradient_norm.cpp asks of a device. Not here: device_norm, which callers have from gradient_norm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ortmodule {

// Dense tensors of devices that have our kernels. Throws kInvalidArgument for others.
void scale_on_device(const std::vector<at::Tensor>& gradients, double factor);

}  // namespace ortmodule
