// Convolutions of pictures with few channels, the first of most networks, at each run with the same filters.
//
// oneDNN keeps neighboring channels in a vector and fills it up where there are three. Here a vector holds neighboring
// results of one position, 14 positions stay in registers, and each number of the picture is read where it lies by all
// filters. 7x7 over 3 channels, 224 x 224 with stride 2, took 2.46 ms on a thread of a Xeon with AVX-512 in oneDNN.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/window.h"

namespace ortmodule {

// Whether this is the faster way to y of the sizes `y`: floats of up to four channels on the CPU, one group, no
// dilation, strides of one or two along a row, a whole number of vectors of results.
bool is_few_channels(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a, c10::IntArrayRef y);

// w [O, C, h, w] as few_channel_convolution reads it.
at::Tensor few_channel_filters(const at::Tensor& w);

// y of `y` sizes, channels last, of x [N, C, H, W] and a bias [O] that may be undefined; negative numbers become zero
// with `relu`. What an element is summed up from, and in which order, depends on the filters' sizes alone.
at::Tensor few_channel_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& filters,
                                   const at::Tensor& bias, const ConvAttributes& a, c10::IntArrayRef padding,
                                   c10::IntArrayRef y, bool relu);

}  // namespace ortmodule
