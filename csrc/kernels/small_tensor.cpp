#include "kernels/small_tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <utility>
#include <vector>

#include "base/asan.h"
#include "kernels/in_small_block.h"

namespace ortmodule {
namespace {

// The tensors that a thread keeps, by the list that their memory is from.
struct Spares {
  static constexpr size_t kMostBytes = size_t{64} << 10;  // of one list
  std::array<std::vector<at::Tensor>, SmallBlocks::kClasses> by_class;
};
constinit thread_local Spares* spares = nullptr;  // read without the check that a destructor would need

struct SparesOwner {
  ~SparesOwner() {
    delete spares;
    spares = nullptr;
    over = true;
  }
  bool over = false;
};
thread_local SparesOwner owner;

Spares* make_spares() {
  if (!owner.over) spares = new Spares;
  return spares;
}

// The keys of a float tensor as its constructor completes them outside inference mode, whose tensors are of another
// kind.
c10::DispatchKeySet plain_keys() {
  static const c10::DispatchKeySet keys = [] {
    const c10::InferenceMode off(false);
    return at::detail::empty_cpu({0}, at::kFloat).key_set();
  }();
  return keys;
}

// Whether `t`, an object in a small block, has its memory there, is as make_float makes it but for its sizes, and is
// known to nobody but its holder: no other tensor, no weak reference, no Python object, no history.
bool is_unknown(const at::Tensor& t) {
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (t.use_count() != 1 || t.weak_use_count() != 1) return false;
  if (impl.dtype() != caffe2::TypeMeta::Make<float>() || impl.key_set() != plain_keys()) return false;
  const c10::Storage& storage = impl.unsafe_storage();  // plain tensors have one
  if (!storage) return false;
  const c10::StorageImpl& memory = *storage.unsafeGetStorageImpl();
  return SmallBlocks::owns(&memory) && storage.use_count() == 1 && SmallBlocks::owns(memory.data()) &&
         impl.storage_offset() == 0 && !impl.autograd_meta() && !impl.pyobj_slot()->load_pyobj() &&
         !memory.pyobj_slot()->load_pyobj();
}

}  // namespace

at::Tensor make_float(c10::IntArrayRef sizes) {
  size_t bytes = sizeof(float);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  if (bytes == 0 || bytes > SmallBlocks::kLargest) return at::Tensor(at::detail::empty_cpu(sizes, at::kFloat));
  if (spares && !c10::InferenceMode::is_enabled()) {
    std::vector<at::Tensor>& kept = spares->by_class[SmallBlocks::class_of(bytes)];
    if (!kept.empty()) {
      at::Tensor out = std::move(kept.back());
      kept.pop_back();
      c10::TensorImpl* const impl = out.unsafeGetTensorImpl();
      c10::StorageImpl* const memory = impl->unsafe_storage().unsafeGetStorageImpl();
      memory->set_nbytes(bytes);
      allow_access(memory->data(), bytes);
      if (!impl->is_contiguous() || impl->sizes() != sizes) impl->set_sizes_contiguous(sizes);
      return out;
    }
  }
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  auto storage = c10::make_intrusive<InSmallBlock<c10::StorageImpl>>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                     allocator->allocate(bytes), allocator, true);
  at::Tensor out = at::detail::make_tensor<InSmallBlock<c10::TensorImpl>>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return out;
}

void recycle_block(at::Tensor& value) {
  if (!is_unknown(value)) {
    value.reset();
    return;
  }
  Spares* const all = spares ? spares : make_spares();
  const c10::Storage& storage = value.unsafeGetTensorImpl()->unsafe_storage();
  std::vector<at::Tensor>* const kept = all ? &all->by_class[SmallBlocks::class_of(storage.data())] : nullptr;
  if (kept && (kept->size() + 1) * storage.nbytes() <= Spares::kMostBytes) {
    SmallBlocks::set_aside(storage.data());
    kept->push_back(std::move(value));
  } else {
    value.reset();
  }
}

}  // namespace ortmodule
