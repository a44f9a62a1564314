// The sum of two short float tensors on the CPU without the dispatcher, on more threads than at::add takes.
//
// at::add keeps what is shorter than 32,768 elements on one thread, which then reads half of its operands from another
// core's cache: the layers before it share their rows out. The bits are the same. Only *_kernel.cpp files include this
// header.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

// Whether a + b is one: contiguous, of the same sizes, and no longer than is worth it.
bool is_short_sum(const at::Tensor& a, const at::Tensor& b);
// out = a + b for what is; out is alike and may be a or b.
void short_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace ortmodule
