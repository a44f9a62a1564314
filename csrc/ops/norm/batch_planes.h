// Batch normalisation of float planes on the CPU: statistics, application and gradient.
//
// As in ATen the sums are double; here they are vectors of sums. Planes of a few elements (the last layers of a
// convolution network) are taken many channels at a time, so that the vectors are full.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// Whether the functions below take X: [N, C, ...] float, contiguous, not small; and numbers per channel of float.
bool has_batch_planes(const at::Tensor& x, const at::Tensor& per_channel);

// Numbers per channel, each float of size C.
struct BatchStatistics {
  at::Tensor mean, var, invstd;  // var: biased
};

// y = (x - mean) / sqrt(var + epsilon) * scale + bias, with the statistics of x.
at::Tensor normalized_batch(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& bias, double epsilon,
                            BatchStatistics& out);

// The same with given statistics: to the bit what the function above makes of its own.
at::Tensor normalized_batch(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& invstd);

struct BatchGradients {
  at::Tensor dx, dscale, dbias;
};

// Gradients of normalized_batch given its mean and 1 / sqrt(var + epsilon); dx is made where it is wanted.
BatchGradients normalized_batch_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                                          const at::Tensor& mean, const at::Tensor& invstd, bool wants_dx);

}  // namespace ortmodule
