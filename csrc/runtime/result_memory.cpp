#include "runtime/result_memory.h"

#include <c10/core/impl/COW.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <unordered_set>

#include "kernels/materialized.h"

namespace ortmodule {
namespace {

const c10::TensorImpl* impl_of(const at::Tensor& t) { return t.unsafeGetTensorImpl(); }

bool is_held_once(const at::Tensor& t) { return t.use_count() == 1 && impl_of(t)->unsafe_storage().use_count() == 1; }

// How many of what the run knows hold a tensor and its memory.
struct Holders {
  size_t tensor = 0;
  std::unordered_set<const c10::TensorImpl*> of_memory;

  void meet(const at::Tensor& other, const at::Tensor& t) {
    if (memory_of(other) != memory_of(t)) return;
    tensor += impl_of(other) == impl_of(t);
    of_memory.insert(impl_of(other));
  }
  bool are_all(const at::Tensor& t) const {
    return tensor >= t.use_count() && of_memory.size() >= impl_of(t)->unsafe_storage().use_count();
  }
};

// A tensor as this one, counting its writes with it, on other memory.
at::Tensor moved_to(const c10::Storage& memory, const at::Tensor& t) {
  const c10::TensorImpl& old = *impl_of(t);
  at::Tensor moved = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory), t.key_set(), t.dtype());
  moved.unsafeGetTensorImpl()->set_sizes_and_strides(old.sizes(), old.strides(), old.storage_offset());
  moved.unsafeGetTensorImpl()->set_version_counter(old.version_counter());
  return moved;
}

// Whether an output before this one has its memory, and another owner.
bool is_of_another(const std::vector<at::Tensor>& outputs, size_t i, const std::vector<size_t>& owners) {
  for (size_t j = 0; j < i && i < owners.size(); ++j)
    if (owners[j] != owners[i] && memory_of(outputs[j]) == memory_of(outputs[i])) return true;
  return false;
}

// Moves output i to a copy of its memory, with those after it that are views of that and have its owner.
void move_together(std::vector<at::Tensor>& outputs, size_t i, size_t count, const std::vector<size_t>& owners) {
  std::vector<size_t> with;
  for (size_t k = i + 1; k < std::min(count, owners.size()); ++k)
    if (owners[k] == owners[i] && memory_of(outputs[k]) == memory_of(outputs[i])) with.push_back(k);
  const at::Tensor first = outputs[i];
  if (with.empty()) {
    outputs[i] = first.detach().clone();
    return;
  }
  const auto bytes = static_cast<int64_t>(first.storage().nbytes());
  const at::Tensor all = at::empty({0}, first.options().dtype(at::kByte)).set_(first.storage(), 0, {bytes}).clone();
  outputs[i] = moved_to(all.storage(), first);
  outputs[i].unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  for (size_t k : with) {
    outputs[k] = moved_to(all.storage(), outputs[k]);
    outputs[k].unsafeGetTensorImpl()->set_version_counter(impl_of(outputs[i])->version_counter());
  }
}

// Whoever writes the result from now on writes a copy of what the saved slots read (Note [Results]).
void keep_for_backward(at::Tensor& result, std::vector<at::Tensor>& slots, const std::vector<int>& saved,
                       std::vector<ReadResult>& read) {
  c10::StorageImpl* const memory = result.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  c10::intrusive_ptr<c10::StorageImpl> same = c10::impl::cow::lazy_clone_storage(*memory);
  if (!same) {  // memory that has an owner of another kind
    result = result.detach().clone();
    return;
  }
  // Kernels ask for memory in ways that would make a copy; this one is as it is until the slots are emptied.
  const size_t bytes = same->nbytes();
  void* const data = same->_mutable_data_ptr_no_checks().get();
  const c10::Device device = same->device();
  at::Allocator* const allocator = same->allocator();
  auto* const held = new c10::intrusive_ptr<c10::StorageImpl>(std::move(same));
  c10::DataPtr as_it_is(
      data, held, [](void* p) { delete static_cast<c10::intrusive_ptr<c10::StorageImpl>*>(p); }, device);
  const c10::Storage kept(c10::Storage::use_byte_size_t(), bytes, std::move(as_it_is), allocator, false);
  for (int slot : saved)
    if (memory_of(slots[slot]) == memory) slots[slot] = moved_to(kept, slots[slot]);
  read.push_back(
      {kept, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory))});
}

}  // namespace

bool ReadResult::is_shown() const {
  const c10::intrusive_ptr<c10::StorageImpl> result = of_result.lock();
  return result && c10::impl::cow::is_cow_data_ptr(result->data_ptr());
}

ResultsApart set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<size_t>& owners,
                               std::vector<at::Tensor>& slots, const std::vector<int>& saved) {
  ResultsApart apart;
  for (size_t i = 0; i < std::min(count, outputs.size()); ++i) {
    at::Tensor& result = outputs[i];
    if (!memory_of(result) || is_held_once(result)) continue;
    Holders known;
    for (const at::Tensor& other : outputs) known.meet(other, result);
    for (int slot : saved) known.meet(slots[slot], result);
    if (is_of_another(outputs, i, owners)) {
      move_together(outputs, i, count, owners);
      continue;
    }
    const bool again = std::any_of(outputs.begin(), outputs.begin() + static_cast<long>(i),
                                   [&](const at::Tensor& before) { return before.is_same(result); });
    if (again || !known.are_all(result)) {
      result = result.detach().clone();
      continue;
    }
    bool is_read = false, is_torchs = false;
    for (int slot : saved) {
      const at::Tensor& value = slots[slot];
      if (memory_of(value) != memory_of(result)) continue;
      is_read |= result.is_cpu() && !value.is_inference();
      // With its history, of an operator whose backward is torch's; or more than elements in rows.
      is_torchs |= value.requires_grad() || value.layout() != at::kStrided || value.is_quantized();
      if (value.is_same(result) || value.is_inference()) continue;
      result.unsafeGetTensorImpl()->set_version_counter(impl_of(value)->version_counter());
      apart.viewed.push_back(slot);
    }
    if (is_read && !is_torchs) keep_for_backward(result, slots, saved, apart.read);
  }
  return apart;
}

void set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<size_t>& owners) {
  std::vector<at::Tensor> none;
  set_results_apart(outputs, count, owners, none, {});
}

bool any_channels_last(const std::vector<at::Tensor>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) {
    return t.defined() && t.dim() == 4 && t.layout() == at::kStrided && !t.is_contiguous() &&
           t.is_contiguous(at::MemoryFormat::ChannelsLast);
  });
}

void set_row_by_row(std::vector<at::Tensor>& outputs, size_t count) {
  for (size_t i = 0; i < std::min(count, outputs.size()); ++i) {
    at::Tensor& result = outputs[i];
    if (!memory_of(result) || result.layout() != at::kStrided) continue;
    if (!result.is_contiguous()) result = result.contiguous();
    const c10::DimVector strides = c10::contiguous_strides(result.sizes());
    if (result.strides() != c10::IntArrayRef(strides)) result = result.as_strided(result.sizes(), strides);
  }
}

}  // namespace ortmodule
