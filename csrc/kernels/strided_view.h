// Views without the dispatcher.
//
// x.view(), x.narrow() and their like take 0.3 to 1 us each to come to what is one allocation: a tensor over the same
// storage. Kernels run below autograd, where a view is nothing more. Only *_kernel.cpp files include this header. Not
// here: whether sizes and strides stay inside the storage, which the caller knows from x.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>

#include "kernels/in_small_block.h"

namespace ortmodule {

// x.as_strided(sizes, strides, offset).
inline at::Tensor strided_view(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (x.layout() != at::kStrided || !x.has_storage() || x.is_quantized() ||
      x.unsafeGetTensorImpl()->is_python_dispatch() || x.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return at::as_strided(x, sizes, strides, offset);
  at::Tensor view = at::detail::make_tensor<InSmallBlock<c10::TensorImpl>>(
      c10::TensorImpl::VIEW, c10::Storage(x.storage()), x.key_set(), x.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return view;
}

}  // namespace ortmodule
