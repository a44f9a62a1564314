// Float tensors on the CPU without the dispatcher, whose objects lie in small blocks where they are small themselves
// (ops/in_small_block.h). Only *_kernel.cpp files include this header.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// A contiguous float tensor on the CPU, not initialized.
at::Tensor make_float(c10::IntArrayRef sizes);

}  // namespace ortmodule
