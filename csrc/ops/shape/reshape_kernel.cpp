// ATen kernels of Reshape, Flatten, Squeeze and Unsqueeze: views, or a copy where strides allow none.
#include <ATen/ops/reshape.h>

#include <algorithm>

#include "ops/host_values.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Reshape, "aten", [](const Node& node) -> Kernel {
  const bool allow_zero = node.get_int("allowzero", 0) != 0;
  return [sizes = HostInts(node, 1), allow_zero](KernelContext& c) {
    c10::DimVector storage;
    c10::IntArrayRef wanted = sizes.read(c, storage);
    const at::Tensor& x = c.in(0);
    if (!allow_zero && std::find(wanted.begin(), wanted.end(), 0) != wanted.end()) {
      c10::DimVector copied(wanted.begin(), wanted.end());
      for (size_t i = 0; i < copied.size(); ++i)
        if (copied[i] == 0) copied[i] = x.size(static_cast<int64_t>(i));
      storage = std::move(copied);
      wanted = storage;
    }
    c.out(0, at::reshape(x, wanted));
  };
});

ORTMODULE_KERNEL("", Flatten, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 1);
  return [given](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t axis = given < 0 ? given + x.dim() : given;
    int64_t rows = 1, columns = 1;
    for (int64_t i = 0; i < x.dim(); ++i) (i < axis ? rows : columns) *= x.size(i);
    c.out(0, at::reshape(x, {rows, columns}));
  };
});

ORTMODULE_KERNEL("", Squeeze, "aten", [](const Node& node) -> Kernel {
  return [axes = HostInts(node, 1)](KernelContext& c) {
    if (!axes.present()) {
      c.out(0, c.in(0).squeeze());
      return;
    }
    c10::DimVector storage;
    const c10::IntArrayRef list = axes.read(c, storage);
    const at::Tensor& x = c.in(0);
    for (int64_t a : list)
      ORTMODULE_CHECK(x.size(a) == 1, kRuntime, "[Squeeze] axis ", a, " has size ", x.size(a),
                      ", only size 1 can be squeezed");
    c.out(0, list.size() == 1 ? x.squeeze(list[0]) : x.squeeze(list));
  };
});

ORTMODULE_KERNEL("", Unsqueeze, "aten", [](const Node& node) -> Kernel {
  return [axes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef list = axes.read(c, storage);
    at::Tensor y = c.in(0);
    if (list.size() == 1) {
      c.out(0, y.unsqueeze(list[0]));
      return;
    }
    const int64_t rank = y.dim() + static_cast<int64_t>(list.size());
    c10::DimVector sorted;
    for (int64_t a : list) sorted.push_back(positive_axis(a, rank, "Unsqueeze"));
    std::sort(sorted.begin(), sorted.end());
    for (int64_t a : sorted) y = y.unsqueeze(a);
    c.out(0, std::move(y));
  };
});

}  // namespace
}  // namespace ortmodule
