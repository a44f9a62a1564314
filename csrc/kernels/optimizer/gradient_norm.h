// The norm over all gradients at once, and their scaling: what clipping and scaled losses need.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

// (sum of |g|^order)^(1 / order) over all elements of all tensors, their largest magnitude for an infinite order, the
// smallest for a negative infinite one. Sums are of doubles, in an order that does not depend on the number of threads,
// so that a norm of finite floats is finite. NaN where an element is NaN. Dense tensors of the CPU of a floating-point
// type alone: throws kInvalidArgument.
ORTMODULE_API double gradient_norm(const std::vector<at::Tensor>& gradients, double order);

// The same on the gradients' device, for orders 1, 2 and infinity: one float, for which the host does not wait. Sums
// are of floats over a chunk of some thousand elements, then of doubles. With `max_norm` the gradients are scaled by
// min(1, max_norm / (norm + 1e-6)). Dense tensors of one device that updates_on (update.h), in float, bfloat16 or half:
// throws kInvalidArgument for others.
ORTMODULE_API at::Tensor device_norm(const std::vector<at::Tensor>& gradients, double order,
                                     std::optional<double> max_norm);

// Multiplies all elements by `factor`, in the type that each tensor is computed in, wherever they lie.
ORTMODULE_API void scale_gradients(const std::vector<at::Tensor>& gradients, double factor);

}  // namespace ortmodule
