// What comes from outside may be lazy; kernels read memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// The tensor itself, or a copy where its memory is not what it holds: a view that is negated or conjugated when it is
// read, autograd's zero without memory. Undefined stays undefined.
at::Tensor materialized(const at::Tensor& tensor);

}  // namespace ortmodule
