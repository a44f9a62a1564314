// A convolution on tensors, by whichever kernel is the better one: what Conv and FusedConv share.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/packed_filters.h"
#include "ops/conv/window.h"

namespace ortmodule {

// y of x [N, C, d...] and w [O, C / group, d...]; `packed`: of w, null where it may change. What `ending` says is done
// as well.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const ConvAttributes& declared,
                    PackedFilters* packed, const ConvEnding& ending = {});

// The attributes of a convolution whose filters are input `weight`, as far as their rank is known before the run.
ConvAttributes attributes_of(const Node& node, size_t weight);

}  // namespace ortmodule
