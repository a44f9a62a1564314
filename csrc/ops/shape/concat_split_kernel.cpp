// ATen kernels of Concat and Split; the parts of a Split are views.
#include <ATen/ops/cat.h>

#include <algorithm>

#include "ops/host_values.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"
#include "ops/strided_view.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Concat, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  return [axis](KernelContext& c) {
    c10::SmallVector<at::Tensor, 8> parts;
    for (size_t i = 0; i < c.input_count(); ++i) parts.push_back(c.in(i));
    c.out(0, at::cat(at::TensorList(parts.data(), parts.size()), axis));
  };
});

ORTMODULE_KERNEL("", Split, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  const int64_t parts = std::max<int64_t>(1, node.get_int("num_outputs", static_cast<int64_t>(node.outputs().size())));
  return [sizes = HostInts(node, 1), axis, parts](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t along = positive_axis(axis, x.dim(), "Split"), total = x.size(along);
    c10::DimVector part(x.sizes());
    c10::DimVector storage;
    const c10::IntArrayRef given = sizes.read(c, storage);
    ORTMODULE_CHECK(!sizes.present() || given.size() >= c.output_count(), kRuntime, "[Split] ", given.size(),
                    " sizes for ", c.output_count(), " outputs");
    const int64_t chunk = (total + parts - 1) / parts;
    int64_t at = 0;
    for (size_t i = 0; i < c.output_count(); ++i) {
      const int64_t size = sizes.present() ? given[i] : std::max<int64_t>(std::min(chunk, total - at), 0);
      ORTMODULE_CHECK(size >= 0 && at + size <= total, kRuntime, "[Split] the sizes exceed the axis' size of ", total);
      part[along] = size;
      if (c.wants(i)) c.out(i, strided_view(x, part, x.strides(), x.storage_offset() + at * x.stride(along)));
      at += size;
    }
    if (sizes.present())
      for (size_t i = c.output_count(); i < given.size(); ++i) at += given[i];
    ORTMODULE_CHECK(at == total, kRuntime, "[Split] the sizes sum to ", at, ", the axis has size ", total);
  };
});

}  // namespace
}  // namespace ortmodule
