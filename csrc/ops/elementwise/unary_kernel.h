// What the unary kernels of this folder share: compute, or compute over the input when nobody else sees it.
#pragma once

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

template <at::Tensor (*compute)(const at::Tensor&), at::Tensor& (*overwrite)(at::Tensor&)>
Kernel unary_kernel(const Node&) {
  return [](KernelContext& c) {
    if (c.may_overwrite(0)) {
      at::Tensor t = c.in(0);
      overwrite(t);
      c.out(0, std::move(t));
    } else {
      c.out(0, compute(c.in(0)));
    }
  };
}

// For f(into, c), which writes the result into a tensor of input 0's type and sizes: input 0 itself where allowed.
// `allocate(c)` computes it into fresh memory.
template <typename Into, typename Allocate>
Kernel overwriting_kernel(Into into, Allocate allocate) {
  return [into, allocate](KernelContext& c) {
    if (c.may_overwrite(0)) {
      at::Tensor t = c.in(0);
      into(t, c);
      c.out(0, std::move(t));
    } else {
      c.out(0, allocate(c));
    }
  };
}

}  // namespace ortmodule
