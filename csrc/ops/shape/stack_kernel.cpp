// Kernels of Stack and Unstack; the parts of an Unstack are views.
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/small_tensor.h"
#include "kernels/strided_view.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Beyond it ATen's threads are worth what at::stack costs per part.
constexpr size_t kCopiedBytes = size_t{1} << 16;

// Whether the parts are plain memory, few bytes, and all alike.
bool copies(const KernelContext& c) {
  const at::Tensor& first = c.in(0);
  if (first.nbytes() * c.input_count() > kCopiedBytes) return false;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const at::Tensor& part = c.in(i);
    if (!part.is_cpu() || part.layout() != at::kStrided || !part.has_storage() || !part.is_contiguous() ||
        part.is_neg() || part.is_conj() || part.is_quantized() || part.scalar_type() != first.scalar_type() ||
        part.sizes() != first.sizes())
      return false;
  }
  return true;
}

at::Tensor copied(const KernelContext& c, int64_t axis) {
  const at::Tensor& first = c.in(0);
  c10::DimVector sizes(first.sizes());
  sizes.insert(sizes.begin() + axis, static_cast<int64_t>(c.input_count()));
  at::Tensor out = first.scalar_type() == at::kFloat ? make_float(sizes) : at::empty(sizes, first.options());
  const size_t bytes = first.nbytes();
  if (bytes == 0) return out;
  int64_t outer = 1;
  for (int64_t k = 0; k < axis; ++k) outer *= first.size(k);
  const size_t run = bytes / static_cast<size_t>(outer), stride = run * c.input_count();
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (size_t i = 0; i < c.input_count(); ++i, to += run) {
    const char* from = static_cast<const char*>(c.in(i).const_data_ptr());
    for (size_t o = 0; o < static_cast<size_t>(outer); ++o) std::memcpy(to + o * stride, from + o * run, run);
  }
  return out;
}

ORTMODULE_KERNEL("ai.ortmodule", Stack, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 0);
  return [given](KernelContext& c) {
    const int64_t axis = positive_axis(given, c.in(0).dim() + 1, "Stack");
    if (copies(c)) return c.out(0, copied(c, axis));
    c10::SmallVector<at::Tensor, 8> parts;
    for (size_t i = 0; i < c.input_count(); ++i) parts.push_back(c.in(i));
    c.out(0, at::stack(at::TensorList(parts.data(), parts.size()), axis));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", Unstack, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 0);
  return [given](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t axis = positive_axis(given, x.dim(), "Unstack"), stride = x.stride(axis);
    ORTMODULE_CHECK(static_cast<int64_t>(c.output_count()) <= x.size(axis), kRuntime, "[Unstack] ", c.output_count(),
                    " outputs of an axis of size ", x.size(axis));
    c10::DimVector sizes(x.sizes()), strides(x.strides());
    sizes.erase(sizes.begin() + axis);
    strides.erase(strides.begin() + axis);
    for (size_t i = 0; i < c.output_count(); ++i)
      if (c.wants(i)) c.out(i, strided_view(x, sizes, strides, x.storage_offset() + static_cast<int64_t>(i) * stride));
  };
});

}  // namespace
}  // namespace ortmodule
