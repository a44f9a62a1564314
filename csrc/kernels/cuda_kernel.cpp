// Tables and streams of steps, and the fallback to "aten" (cuda_kernel.h).
#include "kernels/cuda_kernel.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>

#include "base/status.h"
#include "cuda/tables.h"

namespace ortmodule {
namespace {

// A step asks for it each time it runs: found once for each type of device.
const cuda::LaunchTable* table_of(c10::DeviceType type) {
  static std::array<std::atomic<const cuda::LaunchTable*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> found{};
  auto& kept = found[static_cast<size_t>(type)];
  if (const cuda::LaunchTable* table = kept.load(std::memory_order_relaxed)) return table;
  const cuda::LaunchTable* table = cuda::table_of(c10::DeviceTypeName(type, true));
  if (table) kept.store(table, std::memory_order_relaxed);
  return table;
}

}  // namespace

void CudaQueue::run(const char* name, const void* arguments, size_t bytes) const {
  const cuda::Launch* launch = cuda::find_launch(table_, name, bytes);
  ORTMODULE_INTERNAL(launch, "there is no CUDA kernel ", name);
  const int error = launch->run(arguments, stream_);
  ORTMODULE_CHECK(error == 0, kRuntime, "the CUDA kernel ", name, " could not be launched: ", table_.error_text(error));
}

CudaQueue cuda_queue(c10::Device device) {
  const cuda::LaunchTable* table = table_of(device.type());
  ORTMODULE_INTERNAL(table, "there are no kernels for ", device.str());
  const c10::impl::VirtualGuardImpl guard(device.type());
  return CudaQueue(*table, guard.getStreamNativeHandle(guard.getStream(device)));
}

Kernel cuda_kernel(const Node& node, CudaAttempt attempt) {
  const KernelDef* aten = KernelRegistry::instance().find(node, {});
  ORTMODULE_INTERNAL(aten, "there is no kernel of ATen's for ", node.describe());
  return [attempt = std::move(attempt), other = make_kernel(*aten, node)](KernelContext& c) {
    if (table_of(c.device().type())) {
      const c10::DeviceGuard on(c.device());
      if (attempt(c, cuda_queue(c.device()))) return;
    }
    other(c);
  };
}

void use_cuda_device(c10::Device device) {
  thread_local c10::Device used(c10::kCPU);
  const cuda::LaunchTable* table = table_of(device.type());
  if (!table) return;
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  if (used == device) return;
  const int error = table->use_device(device.index());
  ORTMODULE_CHECK(error == 0, kRuntime, device.str(), " cannot be used: ", table->error_text(error));
  used = device;
}

std::optional<cuda::Element> cuda_element(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return cuda::Element::kFloat;
    case at::kHalf:
      return cuda::Element::kHalf;
    case at::kBFloat16:
      return cuda::Element::kBFloat16;
    default:
      return std::nullopt;
  }
}

bool cuda_plain(const KernelContext& c, const at::Tensor& x) {
  return x.defined() && x.device() == c.device() && x.layout() == at::kStrided && x.is_contiguous() && x.numel() > 0 &&
         !x.is_conj() && !x.is_neg();
}

bool has_cuda_kernels(c10::Device device) { return table_of(device.type()) != nullptr; }

at::Tensor cuda_workspace(const KernelContext& c, int64_t floats) {
  return at::empty({floats}, at::TensorOptions(at::kFloat).device(c.device()));
}

}  // namespace ortmodule
