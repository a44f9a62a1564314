// How kernels of provider "cuda" run: they check their operands and call a launch function of their device's table.
//
// What such a kernel does not take (strides, types, sizes) it leaves to the operator's "aten" kernel, which is also its
// oracle in tests and serves where no table is there. Only *_kernel.cpp files and kernels/optimizer include this
// header.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "cuda/launch_table.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

// Which types our CUDA kernels take.
inline const std::vector<DType> kCudaTypes{DType::kFloat, DType::kFloat16, DType::kBFloat16};

// The launch functions of a step's device, and the stream that is current there.
class CudaQueue {
 public:
  CudaQueue(const cuda::LaunchTable& table, void* stream) : table_(table), stream_(stream) {}

  // Queues the launch of that name. Throws kRuntime with the driver's reason where that fails.
  template <typename Arguments>
  void run(const char* name, const Arguments& arguments) const {
    run(name, &arguments, sizeof(Arguments));
  }

 private:
  void run(const char* name, const void* arguments, size_t bytes) const;

  const cuda::LaunchTable& table_;
  void* stream_;
};

// Those of a device that has kernels, which is the current one; throws kInternal for another.
CudaQueue cuda_queue(c10::Device device);

// False: the call is one for the "aten" kernel, and nothing was handed out.
using CudaAttempt = std::function<bool(KernelContext&, const CudaQueue&)>;

Kernel cuda_kernel(const Node& node, CudaAttempt attempt);

// Makes the device's context current in this thread, once: one of autograd's that has asked the device for nothing has
// none, which libraries that torch calls warn of.
void use_cuda_device(c10::Device device);

// None for a type that the kernels do not compute with.
std::optional<cuda::Element> cuda_element(at::ScalarType type);
inline std::optional<cuda::Element> cuda_element(const at::Tensor& x) { return cuda_element(x.scalar_type()); }

// Whether the tensor is there, of the device, in row-major order, and has elements.
bool cuda_plain(const KernelContext& c, const at::Tensor& x);

// Whether there is a table of our kernels for the device.
bool has_cuda_kernels(c10::Device device);

// Floats that are gone when the step is done, on the step's device.
at::Tensor cuda_workspace(const KernelContext& c, int64_t floats);

inline const void* address(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* mutable_address(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

}  // namespace ortmodule
