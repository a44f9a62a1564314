// What comes from outside may be lazy; kernels read memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace ortmodule {

// A copy of a tensor whose memory is not what it holds: a view that is negated or conjugated when it is read,
// autograd's zero without memory.
at::Tensor materialized_copy(const at::Tensor& tensor);

// One whose memory is made when it is asked for has it from here on.
inline void make_memory(const at::Tensor& tensor) {
  if (tensor.defined()) static_cast<void>(tensor.has_storage());
}

// The tensor itself, which has its memory, or such a copy. Undefined stays undefined.
inline at::Tensor materialized_values(at::Tensor tensor) {
  constexpr c10::DispatchKeySet kLazy(
      {c10::DispatchKey::Negative, c10::DispatchKey::Conjugate, c10::DispatchKey::ZeroTensor});
  return tensor.defined() && tensor.key_set().has_any(kLazy) ? materialized_copy(tensor) : std::move(tensor);
}

// Null of one without memory.
inline const c10::StorageImpl* memory_of(const at::Tensor& t) {
  return t.defined() ? t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

inline at::Tensor materialized(at::Tensor tensor) {
  make_memory(tensor);
  return materialized_values(std::move(tensor));
}

}  // namespace ortmodule
