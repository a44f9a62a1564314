// Small bridges between the core's types and ATen's, for kernels and the runtime.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "base/dtype.h"
#include "graph/attribute.h"
#include "ortmodule/export.h"

namespace ortmodule {

// What holds the elements: the type itself, or for a type below a byte int8 or uint8. Throws kUnsupported for strings.
ORTMODULE_API at::ScalarType to_scalar_type(DType dtype);
// The type that torch knows; a type below a byte is known to the graph alone.
ORTMODULE_API DType to_dtype(at::ScalarType type);
// A CPU tensor with a copy of the constant's elements.
ORTMODULE_API at::Tensor tensor_from(const TensorData& data);
// One that nobody may write: of many elements it is the constant's own bytes.
at::Tensor shared_tensor_from(const TensorData& data);
// A tensor's own elements as a constant, where they lie as one's would; else a copy. Nobody may change them.
ORTMODULE_API TensorData shared_data_from(const at::Tensor& tensor);
// A copy of a tensor's elements as a constant (moved to the CPU and made contiguous first).
ORTMODULE_API TensorData tensor_data_from(const at::Tensor& tensor);

}  // namespace ortmodule
