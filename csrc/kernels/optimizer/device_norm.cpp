#include "kernels/optimizer/device_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <cmath>
#include <map>
#include <utility>

#include "base/status.h"
#include "kernels/cuda_kernel.h"
#include "kernels/optimizer/gradient_norm.h"
#include "kernels/optimizer/norm_launch.h"

namespace ortmodule {
namespace {

cuda::NormKind kind_of(double order) {
  if (order == 1) return cuda::NormKind::kOne;
  if (order == 2) return cuda::NormKind::kTwo;
  ORTMODULE_CHECK_ARG(std::isinf(order) && order > 0, "a norm of order ", order,
                      " has no kernel for a device: 1, 2 and infinity have");
  return cuda::NormKind::kMost;
}

// Gradients of one type, all of them read 16 bytes at a time or none.
struct List {
  std::vector<int64_t> elements;
  std::vector<void*> gradients;

  cuda::GradientLists launch(at::ScalarType type, int64_t chunk) const {
    return {*cuda_element(type), static_cast<int64_t>(elements.size()), elements.data(), gradients.data(), chunk};
  }
  int64_t blocks(int64_t chunk) const {
    int64_t all = 0;
    for (int64_t n : elements) all += (n + chunk - 1) / chunk;
    return all;
  }
};

struct Lists {
  std::map<std::pair<at::ScalarType, bool>, List> by_kind;
  int64_t chunk = 0, blocks = 0;

  // Empty gradients are left out.
  explicit Lists(const std::vector<at::Tensor>& gradients) {
    int64_t all = 0;
    for (const at::Tensor& g : gradients) {
      ORTMODULE_CHECK_ARG(g.layout() == at::kStrided && has_cuda_kernels(g.device()) &&
                              g.device() == gradients.front().device() && g.is_non_overlapping_and_dense() &&
                              !g.is_neg() && cuda_element(g),
                          "a gradient of ", g.scalar_type(), " and shape ", g.sizes(), " on ", g.device(),
                          " is not a dense tensor of a device's kernels");
      if (g.numel() == 0) continue;
      void* const at = mutable_address(g);
      List& list = by_kind[{g.scalar_type(), reinterpret_cast<uintptr_t>(at) % 16 == 0}];
      list.elements.push_back(g.numel());
      list.gradients.push_back(at);
      all += g.numel();
    }
    chunk = cuda::norm_chunk(all);
    for (const auto& [kind, list] : by_kind) blocks += list.blocks(chunk);
  }
};

at::Tensor floats_on(c10::Device device, int64_t count) {
  return at::empty({count}, at::TensorOptions(at::kFloat).device(device));
}

}  // namespace

void scale_on_device(const std::vector<at::Tensor>& gradients, double factor) {
  std::map<c10::DeviceIndex, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& g : gradients) by_device[g.device().index()].push_back(g);
  for (const auto& [index, there] : by_device) {
    const Lists lists(there);
    const c10::DeviceGuard on(there.front().device());
    const CudaQueue queue = cuda_queue(there.front().device());
    for (const auto& [kind, list] : lists.by_kind)
      queue.run("scale_gradients",
                cuda::ScaleLaunch{list.launch(kind.first, lists.chunk), {}, 0, static_cast<float>(factor)});
  }
}

at::Tensor device_norm(const std::vector<at::Tensor>& gradients, double order, std::optional<double> max_norm) {
  ORTMODULE_CHECK_ARG(!gradients.empty(), "a norm of no gradients");
  const cuda::NormKind kind = kind_of(order);
  const c10::Device device = gradients.front().device();
  const Lists lists(gradients);
  if (lists.blocks == 0) return at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  const c10::DeviceGuard on(device);
  const CudaQueue queue = cuda_queue(device);
  const at::Tensor parts = floats_on(device, lists.blocks);
  at::Tensor norm = at::empty({}, parts.options());
  auto* next = static_cast<float*>(mutable_address(parts));
  for (const auto& [key, list] : lists.by_kind) {
    queue.run("gradient_parts", cuda::NormPartsLaunch{list.launch(key.first, lists.chunk), kind, next});
    next += list.blocks(lists.chunk);
  }
  cuda::NormLaunch of{kind, lists.blocks, static_cast<const float*>(address(parts)),
                      static_cast<float*>(mutable_address(norm))};
  if (!max_norm) {
    queue.run("gradient_norm", of);
    return norm;
  }
  for (const auto& [key, list] : lists.by_kind) {
    queue.run("scale_gradients",
              cuda::ScaleLaunch{list.launch(key.first, lists.chunk), of, static_cast<float>(*max_norm), 1});
    of.to = nullptr;
  }
  for (const at::Tensor& g : gradients)
    if (!g.is_inference()) g.unsafeGetTensorImpl()->bump_version();
  return norm;
}

}  // namespace ortmodule
