// ATen kernels of the operators in scaling.cpp.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/host_values.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Tensor flag(const KernelContext& c, bool value, at::IntArrayRef sizes = {}) {
  return at::full(sizes, value, at::TensorOptions(at::kBool).device(c.device()));
}

ORTMODULE_KERNEL("com.microsoft", BatchScale, "aten", [](const Node& node) -> Kernel {
  const std::array<double, 3> scales{node.get_float("scale0", 1), node.get_float("scale1", 1),
                                     node.get_float("scale2", 1)};
  return [scales](KernelContext& c) {
    for (size_t i = 0; i < 3; ++i)
      if (c.wants(i)) c.out(i, at::mul(c.in(0), scales[i]));
  };
});

ORTMODULE_KERNEL("com.microsoft", Scale, "aten", [](const Node& node) -> Kernel {
  return [down = node.get_int("scale_down", 0) != 0](KernelContext& c) {
    ORTMODULE_CHECK(c.in(1).numel() == 1, kRuntime, "[Scale] scale should be one number, got ", c.in(1).sizes());
    const at::Tensor scale = c.in(1).reshape({}).to(c.in(0).scalar_type());
    c.out(0, down ? c.in(0).div(scale) : c.in(0).mul(scale));
  };
});

ORTMODULE_KERNEL("com.microsoft", MixedPrecisionScale, "aten", [](const Node& node) -> Kernel {
  const at::ScalarType type = to_scalar_type(static_cast<DType>(node.get_int("to", 1)));
  return [type, fuse = node.get_int("fuse_outputs", 0) != 0](KernelContext& c) {
    ORTMODULE_CHECK(c.in(0).numel() == 1, kRuntime, "[MixedPrecisionScale] S should be one number");
    const at::Tensor scale = c.in(0).reshape({});
    std::vector<at::Tensor> all;
    for (size_t i = 1; i < c.input_count(); ++i) all.push_back(c.in(i).mul(scale).to(type));
    if (fuse) {
      for (at::Tensor& y : all) y = y.flatten();
      c.out(0, at::cat(all));
      return;
    }
    for (size_t i = 0; i < all.size(); ++i) c.out(i, all[i]);
  };
});

ORTMODULE_KERNEL("com.microsoft", IsFinite, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, at::isfinite(c.in(0))); }; });

ORTMODULE_KERNEL("com.microsoft", IsAllFinite, "aten", [](const Node& node) -> Kernel {
  const bool inf = node.get_int("isinf_only", 0) != 0, nan = node.get_int("isnan_only", 0) != 0;
  ORTMODULE_CHECK_GRAPH(!(inf && nan), "[IsAllFinite] isinf_only and isnan_only exclude each other (", node.describe(),
                        ")");
  return [inf, nan](KernelContext& c) {
    at::Tensor good = flag(c, true);
    for (size_t i = 0; i < c.input_count(); ++i) {
      const at::Tensor& x = c.in(i);
      good = good.logical_and((inf   ? at::isinf(x).logical_not()
                               : nan ? at::isnan(x).logical_not()
                                     : at::isfinite(x))
                                  .all());
    }
    c.out(0, good);
  };
});

ORTMODULE_KERNEL("com.microsoft", All, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, c.in(0).all()); }; });
ORTMODULE_KERNEL("com.microsoft", Group, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, flag(c, true)); }; });
ORTMODULE_KERNEL("com.microsoft", ZeroGradient, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, at::zeros_like(c.in(0))); }; });

ORTMODULE_KERNEL("com.microsoft", InPlaceAccumulator, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const bool update = !c.has(2) || c.double_value(2) != 0;
    c.out(0, update ? at::add(c.in(0), c.in(1).to(c.in(0).scalar_type())) : c.in(0).clone());
  };
});

ORTMODULE_KERNEL("com.microsoft", InPlaceAccumulatorV2, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const bool overwrite = c.has(2) && c.double_value(2) != 0;
    const at::Tensor value = c.in(1).to(c.in(0).scalar_type());
    if (c.wants(1)) c.out(1, overwrite ? value.clone() : at::add(c.in(0), value));
    c.out(0, flag(c, true, {1}));
  };
});

ORTMODULE_KERNEL("com.microsoft", ReduceSumTraining, "aten", [](const Node& node) -> Kernel {
  const bool keep = node.get_int("keepdims", 1) != 0, noop = node.get_int("noop_with_empty_axes", 0) != 0;
  return [axes = HostInts(node, 1), keep, noop](KernelContext& c) {
    c10::DimVector storage, all;
    const at::Tensor& x = c.in(0);
    for (const int64_t axis : axes.read(c, storage)) all.push_back(positive_axis(axis, x.dim(), "ReduceSumTraining"));
    if (all.empty() && noop) return c.out(0, x.clone());
    for (int64_t i = 0; all.empty() && i < x.dim(); ++i) storage.push_back(i);
    c.out(0, at::sum(x, all.empty() ? c10::IntArrayRef(storage) : c10::IntArrayRef(all), keep, x.scalar_type()));
  };
});

ORTMODULE_KERNEL("com.microsoft", FakeQuant, "aten", [](const Node& node) -> Kernel {
  const auto low = static_cast<double>(node.get_int("quant_min", 0)),
             high = static_cast<double>(node.get_int("quant_max", 255));
  return [low, high](KernelContext& c) {
    const at::Tensor &x = c.in(0), &scale = c.in(1), &zero = c.in(2);
    ORTMODULE_CHECK(scale.numel() == 1 && zero.numel() == 1, kRuntime,
                    "[FakeQuant] scale and zero_point should be one number each");
    const at::Tensor step = scale.reshape({}), origin = zero.reshape({}).to(x.scalar_type());
    const at::Tensor q = at::round(x.div(step)).add(origin), kept = q.clamp(low, high);
    if (c.wants(1)) c.out(1, q.eq(kept));
    c.out(0, kept.sub(origin).mul(step));
  };
});

ORTMODULE_KERNEL("com.microsoft", FakeQuantGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    ORTMODULE_CHECK(c.in(0).sizes() == c.in(1).sizes(), kRuntime, "[FakeQuantGrad] expected a mask of shape ",
                    c.in(0).sizes(), ", got ", c.in(1).sizes());
    c.out(0, at::mul(c.in(0), c.in(1)));
  };
});

}  // namespace
}  // namespace ortmodule
