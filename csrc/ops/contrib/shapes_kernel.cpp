// Kernels of the operators in shapes.cpp.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/contrib/broadcast_axes.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("com.microsoft", BroadcastGradientArgs, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    int64_t clash = -1;
    const auto axes = broadcast_axes(c.ints(0), c.ints(1), clash);
    ORTMODULE_CHECK(clash < 0, kRuntime, "[BroadcastGradientArgs] the shapes differ at axis ", clash);
    for (size_t side = 0; side < 2; ++side)
      if (c.wants(side)) c.out(side, at::tensor(axes[side], at::TensorOptions().dtype(at::kLong)));
  };
});

ORTMODULE_KERNEL("com.microsoft", View, "aten", [](const Node& node) -> Kernel {
  std::vector<HostInts> shapes;
  for (size_t i = 1; i < node.inputs().size(); ++i) shapes.emplace_back(node, i);
  return [shapes = std::move(shapes)](KernelContext& c) {
    const at::Tensor flat = c.in(0).reshape({-1});
    int64_t begin = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      c10::DimVector storage;
      const c10::IntArrayRef sizes = shapes[i].read(c, storage);
      int64_t count = 1;
      for (const int64_t d : sizes) {
        ORTMODULE_CHECK(d >= 0 && !__builtin_mul_overflow(count, d, &count), kRuntime, "[View] a size of ", d,
                        " in shape ", i);
      }
      ORTMODULE_CHECK(count <= flat.numel() - begin, kRuntime, "[View] the shapes take more than the ", flat.numel(),
                      " elements of the input");
      c.out(i, flat.narrow(0, begin, count).view(sizes));
      begin += count;
    }
    ORTMODULE_CHECK(begin == flat.numel(), kRuntime, "[View] the shapes take ", begin, " of the input's ", flat.numel(),
                    " elements");
  };
});

}  // namespace
}  // namespace ortmodule
