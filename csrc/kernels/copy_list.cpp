#include "kernels/copy_list.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <unordered_map>

#include "kernels/copy_list_launch.h"
#include "kernels/cuda_kernel.h"

namespace ortmodule {
namespace {

// Whether the bytes can be copied word by word.
bool is_plain_copy(const at::Tensor& from, const at::Tensor& to, c10::Device device) {
  const auto plain = [&](const at::Tensor& t) {
    return t.device() == device && t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg() && !t.is_conj() &&
           t.has_storage() && t.nbytes() % 4 == 0 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 4 == 0;
  };
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && to.numel() > 0 && plain(from) &&
         plain(to);
}

void copy_one(const at::Tensor& from, const at::Tensor& to, bool counts) {
  std::optional<at::AutoDispatchBelowADInplaceOrView> unseen;
  if (!counts) unseen.emplace();
  to.copy_(from);
}

}  // namespace

void copy_list(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to,
               const std::vector<char>& counts) {
  std::optional<c10::Device> device;
  if (to.size() > 1 && has_cuda_kernels(to[0].device())) device = to[0].device();
  // How many of the tensors lie in a block of memory: what shares one is copied by itself, in its turn.
  std::unordered_map<const c10::StorageImpl*, int> users;
  for (const auto* tensors : {&from, &to})
    for (const at::Tensor& t : *tensors)
      if (device && t.has_storage()) ++users[t.storage().unsafeGetStorageImpl()];
  const auto alone = [&](const at::Tensor& t) { return users[t.storage().unsafeGetStorageImpl()] == 1; };
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<int64_t> words;
  for (size_t i = 0; i < to.size(); ++i) {
    if (!device || !is_plain_copy(from[i], to[i], *device) || !alone(from[i]) || !alone(to[i])) {
      copy_one(from[i], to[i], counts[i]);
      continue;
    }
    sources.push_back(address(from[i]));
    targets.push_back(to[i].mutable_data_ptr());
    words.push_back(static_cast<int64_t>(to[i].nbytes() / 4));
    if (counts[i] && !to[i].is_inference()) to[i].unsafeGetTensorImpl()->bump_version();
  }
  if (words.empty()) return;
  const c10::DeviceGuard on(*device);
  cuda_queue(*device).run("copy_list", cuda::CopyListLaunch{static_cast<int64_t>(words.size()), sources.data(),
                                                            targets.data(), words.data()});
}

}  // namespace ortmodule
