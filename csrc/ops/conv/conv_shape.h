// The rule of Conv for every operator that is one, wherever its inputs stand.
#pragma once

#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

// Output 0 from the data x and the filter w; their types are not looked at.
void infer_convolution(InferContext& c, size_t x, size_t w, DType result);
// auto_pad, dilations, group, kernel_shape, pads, strides
void conv_attributes(OpRecord& op);
// Of a forward whose filter is input 1.
double conv_flops(const Node& node, const SizeOf& size);

}  // namespace ortmodule
