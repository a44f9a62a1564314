// Means over small pictures whose channels lie side by side: what a network for images has before its last product.
//
// at::mean is as fast where it is called again and again. Between two runs of a network the weights of convolutions
// pass through the caches and take its code along, which then takes ten times as long as the sums.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// at::mean(x, axes, keep) of x[n, c, h, w], with its bits; undefined where x is no such tensor of floats on the CPU,
// the axes are not h and w, or the pictures are large.
at::Tensor mean_of_pictures(const at::Tensor& x, c10::IntArrayRef axes, bool keep);

}  // namespace ortmodule
