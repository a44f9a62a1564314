// Writes gradients into `.grad` as AccumulateGrad does, without it (module_backward.h says when that may be).
//
// Note [Shared buffers]
// AccumulateGrad takes a buffer that nobody else holds, and copies otherwise. The gradients of weights that were
// stacked or concatenated are parts of one buffer, which they share; they are looked at when the backward is done:
// where nobody else holds the buffer, no two parts overlap and most of it is gradients, each is taken as it lies.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace ortmodule {

class GradientWriter {
 public:
  // `most`: how many gradients may come.
  explicit GradientWriter(size_t most) : most_(most) {}

  // Adds `gradient` to what is in `slot`, the leaf's gradient, or puts it there; false, and nothing done, where it has
  // other sizes than the leaf. Keeps it for finish() where it shares a buffer; leaf and slot must stay until then. Of
  // an undefined one (a custom function's None) nothing is added.
  bool write(const at::Tensor& leaf, at::Tensor& slot, at::Tensor& gradient) {
    if (!gradient.defined()) [[unlikely]]
      return true;
    if (slot.defined() || !lie_alike(leaf, gradient) || !is_held_once(gradient))
      return write_otherwise(leaf, slot, gradient);
    take(leaf, slot, gradient);
    return true;
  }
  // To be called when nothing of the backward is alive any more but what it must keep.
  void finish();

 private:
  // Of the same sizes and strides; few, so that a call of memcmp would take longer.
  static bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
    const c10::TensorImpl &left = *a.unsafeGetTensorImpl(), &right = *b.unsafeGetTensorImpl();
    const c10::IntArrayRef sizes = left.sizes(), strides = left.strides(), others = right.sizes();
    if (sizes.size() != others.size()) return false;
    const int64_t* const steps = right.strides().data();
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] != others[i] || strides[i] != steps[i]) return false;
    return true;
  }
  static bool is_held_once(const at::Tensor& t) {
    return t.use_count() == 1 && t.unsafeGetTensorImpl()->unsafe_storage();
  }
  // Puts it there at once if nobody else holds its buffer and that is no larger, else at the end. It lies as it must.
  void take(const at::Tensor& leaf, at::Tensor& slot, at::Tensor& gradient) {
    const c10::TensorImpl& impl = *gradient.unsafeGetTensorImpl();
    const c10::Storage& storage = impl.unsafe_storage();
    if (storage.use_count() == 1 &&
        storage.unsafeGetStorageImpl()->nbytes() == static_cast<size_t>(impl.numel()) * impl.itemsize()) {
      slot = std::move(gradient);
      return;
    }
    if (parts_.empty()) parts_.reserve(most_);
    parts_.push_back({&leaf, &slot, std::move(gradient)});
  }
  bool write_otherwise(const at::Tensor& leaf, at::Tensor& slot, at::Tensor& gradient);

  struct Part {
    const at::Tensor* leaf;
    at::Tensor* slot;
    at::Tensor gradient;
  };
  const size_t most_;
  std::vector<Part> parts_;
};

}  // namespace ortmodule
