#include "ops/small_tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

#include "ops/in_small_block.h"

namespace ortmodule {

at::Tensor make_float(c10::IntArrayRef sizes) {
  size_t bytes = sizeof(float);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  if (bytes == 0 || bytes > SmallBlocks::kLargest) return at::Tensor(at::detail::empty_cpu(sizes, at::kFloat));
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  auto storage = c10::make_intrusive<InSmallBlock<c10::StorageImpl>>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                     allocator->allocate(bytes), allocator, true);
  at::Tensor out = at::detail::make_tensor<InSmallBlock<c10::TensorImpl>>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return out;
}

}  // namespace ortmodule
