// ATen kernels of Reshape, Flatten, Squeeze and Unsqueeze: views, or a copy where strides allow none.
#include <ATen/ops/reshape.h>

#include <algorithm>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/strided_view.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// at::reshape, which also words the errors; a view of a contiguous tensor without it.
at::Tensor reshaped(const at::Tensor& x, c10::IntArrayRef wanted) {
  if (!x.is_contiguous() || x.numel() == 0) return at::reshape(x, wanted);
  c10::DimVector sizes(wanted), strides(wanted.size());
  int64_t known = 1, open = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= 0 && !__builtin_mul_overflow(known, sizes[i], &known)) continue;
    if (sizes[i] == -1 && open < 0)
      open = static_cast<int64_t>(i);
    else
      return at::reshape(x, wanted);
  }
  if (open >= 0 ? known == 0 || x.numel() % known != 0 : known != x.numel()) return at::reshape(x, wanted);
  if (open >= 0) sizes[open] = x.numel() / known;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strided_view(x, sizes, strides, x.storage_offset());
}

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
    c.out(0, reshaped(x, wanted));
  };
});

ORTMODULE_KERNEL("", Flatten, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 1);
  return [given](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t axis = given < 0 ? given + x.dim() : given;
    int64_t rows = 1, columns = 1;
    for (int64_t i = 0; i < x.dim(); ++i) (i < axis ? rows : columns) *= x.size(i);
    c.out(0, reshaped(x, {rows, columns}));
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
    c10::DimVector sizes, strides;
    c10::SmallVector<char, 8> gone(x.dim(), false);
    for (int64_t a : list) {
      ORTMODULE_CHECK(x.size(a) == 1, kRuntime, "[Squeeze] axis ", a, " has size ", x.size(a),
                      ", only size 1 can be squeezed");
      gone[a < 0 ? a + x.dim() : a] = true;
    }
    for (int64_t i = 0; i < x.dim(); ++i) {
      if (gone[i]) continue;
      sizes.push_back(x.size(i));
      strides.push_back(x.stride(i));
    }
    c.out(0, strided_view(x, sizes, strides, x.storage_offset()));
  };
});

ORTMODULE_KERNEL("", Unsqueeze, "aten", [](const Node& node) -> Kernel {
  return [axes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef list = axes.read(c, storage);
    const at::Tensor& x = c.in(0);
    const int64_t rank = x.dim() + static_cast<int64_t>(list.size());
    c10::DimVector sizes(rank, 0), strides(rank, 0);
    for (int64_t a : list) sizes[positive_axis(a, rank, "Unsqueeze")] = 1;
    // From the last axis on: a new axis has the stride that keeps a contiguous tensor contiguous.
    int64_t from = x.dim(), inner = 1;
    for (int64_t i = rank; i-- > 0;) {
      const bool fresh = sizes[i] == 1;
      ORTMODULE_CHECK(fresh || from > 0, kRuntime, "[Unsqueeze] an axis is named twice");
      if (!fresh) --from;
      strides[i] = fresh ? inner : x.stride(from);
      sizes[i] = fresh ? 1 : x.size(from);
      inner = sizes[i] * strides[i];
    }
    c.out(0, strided_view(x, sizes, strides, x.storage_offset()));
  };
});

}  // namespace
}  // namespace ortmodule
