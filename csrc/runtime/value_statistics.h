// What is kept of a value where the value itself would be too much: its figures and a fingerprint of its bits.
//
// Tensors are read once, in pieces of a fixed size that are put together in order: neither the number of threads nor
// the strides change the fingerprint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "ortmodule/export.h"

namespace ortmodule {

// Of a complex tensor the figures are those of its real and imaginary parts together. A sequence counts as its elements
// behind one another, with their number as its shape.
struct ValueStatistics {
  uint64_t fingerprint = 0;  // of the elements' bits in row-major order; 0: there is no value
  int64_t finite = 0, nans = 0, infinities = 0;
  double min = std::numeric_limits<double>::quiet_NaN();  // of what is finite; NaN where nothing is, or not asked for
  double max = min, mean = min, deviation = min;
  DType dtype = DType::kUndefined;  // undefined: there is no value
  std::vector<int64_t> shape;
};

// `figures`: otherwise there is the fingerprint alone, and all elements count as finite. A device's tensor is copied to
// the host, once all that the device was given to do is done.
ORTMODULE_API ValueStatistics statistics_of(const at::Tensor& value, bool figures = true);

}  // namespace ortmodule
