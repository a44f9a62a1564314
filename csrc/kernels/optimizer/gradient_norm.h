// The norm over all gradients at once, and their scaling: what clipping and scaled losses need.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

// (sum of |g|^order)^(1 / order) over all elements of all tensors, their largest magnitude for an infinite order, the
// smallest for a negative infinite one. Sums are of doubles, in an order that does not depend on the number of threads,
// so that a norm of finite floats is finite. NaN where an element is NaN. Dense tensors of the CPU of a floating-point
// type alone: throws kInvalidArgument.
ORTMODULE_API double gradient_norm(const std::vector<at::Tensor>& gradients, double order);

// Multiplies all elements by `factor`, in the type that each tensor is computed in.
ORTMODULE_API void scale_gradients(const std::vector<at::Tensor>& gradients, double factor);

}  // namespace ortmodule
