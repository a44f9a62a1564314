// Writes gradients into `.grad` as AccumulateGrad does, without it (module_backward.h says when that may be).
//
// Note [Shared buffers]
// AccumulateGrad takes a buffer that nobody else holds, and copies otherwise. The gradients of weights that were
// stacked or concatenated are parts of one buffer, which they share; they are looked at when the backward is done:
// where nobody else holds the buffer, no two parts overlap and most of it is gradients, each is taken as it lies.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ortmodule {

class GradientWriter {
 public:
  // `most`: how many gradients may come.
  explicit GradientWriter(size_t most) : most_(most) {}

  // Adds `gradient` to what is in `slot`, the leaf's gradient, or puts it there. Keeps it for finish() where it shares
  // a buffer; leaf and slot must stay until then.
  void write(const at::Tensor& leaf, at::Tensor& slot, at::Tensor gradient);
  // To be called when nothing of the backward is alive any more but what it must keep.
  void finish();

 private:
  struct Part {
    const at::Tensor* leaf;
    at::Tensor* slot;
    at::Tensor gradient;
  };
  const size_t most_;
  std::vector<Part> parts_;
};

}  // namespace ortmodule
