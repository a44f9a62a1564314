// Float tensors on the CPU without the dispatcher, whose objects lie in small blocks where they are small themselves
// (kernels/in_small_block.h), and come again from step to step. Only *_kernel.cpp files and the executor include this
// header.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/small_blocks.h"

namespace ortmodule {

// A contiguous float tensor on the CPU, not initialized.
at::Tensor make_float(c10::IntArrayRef sizes);

// Resets `value`, which a run needs no more. If it is a small float tensor that nobody else knows, the thread keeps it
// for make_float: to make a tensor and to free it takes longer than a narrow layer's arithmetic.
void recycle_block(at::Tensor& value);
inline void recycle(at::Tensor& value) {
  if (value.defined() && SmallBlocks::owns(value.unsafeGetTensorImpl()))
    recycle_block(value);
  else
    value.reset();
}

}  // namespace ortmodule
