// ATen kernels of Transpose, Expand, Tile, DepthToSpace and SpaceToDepth.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/sum.h>

#include <numeric>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/strided_view.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor permuted(const at::Tensor& x, c10::IntArrayRef perm) {
  ORTMODULE_CHECK(static_cast<int64_t>(perm.size()) == x.dim(), kRuntime, "[Transpose] perm has ", perm.size(),
                  " entries for a tensor of ", x.dim(), " dimensions");
  c10::DimVector sizes, strides;
  c10::SmallVector<char, 8> seen(perm.size(), false);
  for (const int64_t given : perm) {
    const int64_t axis = positive_axis(given, x.dim(), "Transpose");
    ORTMODULE_CHECK(!seen[axis], kRuntime, "[Transpose] perm names axis ", axis, " twice");
    seen[axis] = true;
    sizes.push_back(x.size(axis));
    strides.push_back(x.stride(axis));
  }
  return strided_view(x, sizes, strides, x.storage_offset());
}

ORTMODULE_KERNEL("", Transpose, "aten", [](const Node& node) -> Kernel {
  const std::vector<int64_t> perm = node.get_ints("perm");
  if (!perm.empty()) return [perm](KernelContext& c) { c.out(0, permuted(c.in(0), perm)); };
  return [](KernelContext& c) {
    c10::DimVector reversed(c.in(0).dim());
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    c.out(0, permuted(c.in(0), reversed));
  };
});

ORTMODULE_KERNEL("", Expand, "aten", [](const Node& node) -> Kernel {
  return [sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const at::Tensor& x = c.in(0);
    const c10::IntArrayRef wanted = sizes.read(c, storage);
    if (x.sizes() == wanted)
      c.out(0, x);
    else
      c.out(0, x.expand(at::infer_size_dimvector(x.sizes(), wanted)));
  };
});

ORTMODULE_KERNEL("", Tile, "aten", [](const Node& node) -> Kernel {
  return [repeats = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    c.out(0, c.in(0).repeat(repeats.read(c, storage)));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", TileGrad, "aten", [](const Node& node) -> Kernel {
  return [sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage, split, copies;
    const at::Tensor& dy = c.in(0);
    const c10::IntArrayRef target = sizes.read(c, storage);
    for (size_t i = 0; i < target.size(); ++i) {
      copies.push_back(static_cast<int64_t>(split.size()));
      split.push_back(target[i] == 0 ? 1 : dy.size(static_cast<int64_t>(i)) / target[i]);
      split.push_back(target[i]);
    }
    c.out(0, copies.empty() ? dy.clone() : at::sum(dy.reshape(split), copies, false, dy.scalar_type()));
  };
});

at::Tensor depth_to_space(const at::Tensor& x, int64_t b, bool depth_first) {
  const int64_t n = x.size(0), channels = x.size(1) / (b * b), h = x.size(2), w = x.size(3);
  const at::Tensor split = depth_first ? x.reshape({n, b, b, channels, h, w}).permute({0, 3, 4, 1, 5, 2})
                                       : x.reshape({n, channels, b, b, h, w}).permute({0, 1, 4, 2, 5, 3});
  return split.reshape({n, channels, h * b, w * b});
}

at::Tensor space_to_depth(const at::Tensor& x, int64_t b, bool depth_first) {
  const int64_t n = x.size(0), channels = x.size(1), h = x.size(2) / b, w = x.size(3) / b;
  const at::Tensor split = x.reshape({n, channels, h, b, w, b});
  return split.permute(depth_first ? c10::IntArrayRef{0, 3, 5, 1, 2, 4} : c10::IntArrayRef{0, 1, 3, 5, 2, 4})
      .reshape({n, channels * b * b, h, w});
}

ORTMODULE_KERNEL("", DepthToSpace, "aten", [](const Node& node) -> Kernel {
  const int64_t b = node.get_int("blocksize", 1);
  const bool depth_first = node.get_string("mode", "DCR") == "DCR";
  return [b, depth_first](KernelContext& c) { c.out(0, depth_to_space(c.in(0), b, depth_first)); };
});

Kernel make_space_to_depth(const Node& node) {
  const int64_t b = node.get_int("blocksize", 1);
  const bool depth_first = node.get_string("mode", "DCR") == "DCR";
  return [b, depth_first](KernelContext& c) { c.out(0, space_to_depth(c.in(0), b, depth_first)); };
}

ORTMODULE_KERNEL("ai.ortmodule", DepthToSpaceGrad, "aten", make_space_to_depth);
ORTMODULE_KERNEL("", SpaceToDepth, "aten", make_space_to_depth);

}  // namespace
}  // namespace ortmodule
