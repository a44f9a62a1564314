#include "ops/conv/channels_last.h"

#include <ATen/Context.h>
#include <ATen/ops/as_strided.h>

#include "kernels/cuda_kernel.h"

namespace ortmodule {

bool takes_channels_last(const at::Tensor& x) {
  return !x.is_cpu() && x.dim() == 4 && x.numel() > 0 && cuda_element(x) && at::globalContext().userEnabledCuDNN() &&
         (x.is_cuda() || has_cuda_kernels(x.device()));
}

at::Tensor channels_last(const at::Tensor& t) {
  const at::Tensor turned = t.contiguous(at::MemoryFormat::ChannelsLast);
  const int64_t channels = t.size(1), width = t.size(3), row = channels * width;
  const int64_t strides[] = {row * t.size(2), 1, row, channels};
  // Of one channel, or one row of one element, ATen asks the strides which order is meant.
  return turned.strides() == c10::IntArrayRef(strides) ? turned : turned.as_strided(t.sizes(), strides);
}

at::Tensor laid_out_like(const at::Tensor& w, const at::Tensor& gradient) {
  if (!gradient.defined() || !w.is_contiguous()) return gradient;
  const at::Tensor turned = gradient.contiguous();
  return turned.strides() == w.strides() ? turned : turned.as_strided(w.sizes(), w.strides());
}

}  // namespace ortmodule
