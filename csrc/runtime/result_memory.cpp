#include "runtime/result_memory.h"

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

}  // namespace

std::vector<int> set_results_apart(std::vector<at::Tensor>& outputs, size_t count, const std::vector<at::Tensor>& slots,
                                   const std::vector<int>& saved) {
  std::vector<int> viewed;
  for (size_t i = 0; i < std::min(count, outputs.size()); ++i) {
    at::Tensor& result = outputs[i];
    if (!memory_of(result) || is_held_once(result)) continue;
    Holders known;
    for (const at::Tensor& other : outputs) known.meet(other, result);
    for (int slot : saved) known.meet(slots[slot], result);
    const bool again = std::any_of(outputs.begin(), outputs.begin() + static_cast<long>(i),
                                   [&](const at::Tensor& before) { return before.is_same(result); });
    if (again || !known.are_all(result)) {
      result = result.detach().clone();
      continue;
    }
    for (int slot : saved) {
      const at::Tensor& value = slots[slot];
      if (memory_of(value) != memory_of(result) || value.is_same(result) || value.is_inference()) continue;
      result.unsafeGetTensorImpl()->set_version_counter(impl_of(value)->version_counter());
      viewed.push_back(slot);
    }
  }
  return viewed;
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
