#include "autograd/gradient_writer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

namespace ortmodule {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Whether the gradient lies as its leaf does, or as AccumulateGrad would lay it out.
bool laid_out_for(const at::Tensor& leaf, const at::Tensor& gradient) {
  if (gradient.is_contiguous() && leaf.is_contiguous()) return true;
  return gradient.strides() == leaf.strides() || (gradient.is_contiguous() && !leaf.is_non_overlapping_and_dense());
}

void copy_to(const at::Tensor& leaf, const at::Tensor& gradient) {
  const at::Tensor copy = leaf.is_non_overlapping_and_dense()
                              ? at::empty_strided(leaf.sizes(), leaf.strides(), gradient.options())
                              : at::empty(leaf.sizes(), gradient.options());
  copy.copy_(gradient);
  leaf.mutable_grad() = copy;
}

}  // namespace

bool GradientWriter::write_otherwise(const at::Tensor& leaf, at::Tensor& slot, at::Tensor& gradient) {
  if (leaf.sizes() != gradient.sizes()) return false;
  if (slot.defined()) {
    slot.add_(gradient);
    slot.unsafeGetTensorImpl()->bump_version();  // add_ runs below what counts
  } else if (is_held_once(gradient) && laid_out_for(leaf, gradient)) {
    take(leaf, slot, gradient);
  } else {
    copy_to(leaf, gradient);
  }
  return true;
}

void GradientWriter::finish() {
  const auto place = [](const Part& part) {
    return std::make_pair(storage_of(part.gradient), part.gradient.storage_offset());
  };
  const auto before = [&](const Part& a, const Part& b) {
    const auto [a_storage, a_offset] = place(a);
    const auto [b_storage, b_offset] = place(b);
    return a_storage == b_storage ? a_offset < b_offset : std::less<>()(a_storage, b_storage);
  };
  // As one operator makes the parts they are in order.
  if (!std::is_sorted(parts_.begin(), parts_.end(), before)) std::sort(parts_.begin(), parts_.end(), before);
  for (auto begin = parts_.begin(), end = begin; begin != parts_.end(); begin = end) {
    const c10::StorageImpl* storage = storage_of(begin->gradient);
    size_t bytes = 0;
    int64_t next = 0;
    bool apart = true;
    for (; end != parts_.end() && storage_of(end->gradient) == storage; ++end) {
      const at::Tensor& t = end->gradient;
      apart = apart && t.is_non_overlapping_and_dense() && t.storage_offset() >= next;
      next = t.storage_offset() + t.numel();
      bytes += t.nbytes();
    }
    const bool theirs = begin->gradient.storage().use_count() == static_cast<size_t>(end - begin);
    // A small part would keep all of a large buffer alive.
    const bool take = apart && theirs && bytes * 2 >= storage->nbytes();
    for (auto part = begin; part != end; ++part) {
      if (take)
        *part->slot = std::move(part->gradient);
      else
        copy_to(*part->leaf, part->gradient);
    }
  }
  parts_.clear();
}

}  // namespace ortmodule
