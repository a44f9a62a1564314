// Kernels of Shape and Size: CPU tensors, whatever the input's device.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Shape, "aten", [](const Node& node) -> Kernel {
  const int64_t first = node.get_int("start", 0), last = node.get_int("end", std::numeric_limits<int64_t>::max());
  return [first, last](KernelContext& c) {
    const c10::IntArrayRef sizes = c.in(0).sizes();
    const auto rank = static_cast<int64_t>(sizes.size());
    const auto bound = [rank](int64_t i) { return std::min(std::max<int64_t>(i < 0 ? i + rank : i, 0), rank); };
    const int64_t start = bound(first), end = std::max(start, bound(last));
    at::Tensor shape = at::empty({end - start}, at::TensorOptions(at::kLong));
    std::copy(sizes.begin() + start, sizes.begin() + end, shape.mutable_data_ptr<int64_t>());
    c.out(0, std::move(shape));
  };
});

ORTMODULE_KERNEL("", Size, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    at::Tensor size = at::empty({}, at::TensorOptions(at::kLong));
    *size.mutable_data_ptr<int64_t>() = c.in(0).numel();
    c.out(0, std::move(size));
  };
});

}  // namespace
}  // namespace ortmodule
