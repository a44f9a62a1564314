// ATen kernels of the draws.
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "kernels/seeded.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::ScalarType type_attribute(const Node& node, DType fallback) {
  return to_scalar_type(static_cast<DType>(node.get_int("dtype", static_cast<int64_t>(fallback))));
}

ORTMODULE_KERNEL("", RandomNormal, "aten", [](const Node& node) -> Kernel {
  const double mean = node.get_float("mean", 0), scale = node.get_float("scale", 1);
  ORTMODULE_CHECK_GRAPH(scale >= 0, "[RandomNormal] a negative scale ", scale, " (", node.describe(), ")");
  return [=, seeded = Seeded(node), type = type_attribute(node, DType::kFloat),
          sizes = node.get_ints("shape")](KernelContext& c) {
    c.out(0, seeded.sized(sizes, at::TensorOptions().dtype(type).device(c.device()),
                          [&](at::Tensor& t, const auto& generator) { t.normal_(mean, scale, generator); }));
  };
});

ORTMODULE_KERNEL("", RandomUniform, "aten", [](const Node& node) -> Kernel {
  const double low = node.get_float("low", 0), high = node.get_float("high", 1);
  ORTMODULE_CHECK_GRAPH(low <= high, "[RandomUniform] low ", low, " is above high ", high, " (", node.describe(), ")");
  return [=, seeded = Seeded(node), type = type_attribute(node, DType::kFloat),
          sizes = node.get_ints("shape")](KernelContext& c) {
    c.out(0, seeded.sized(sizes, at::TensorOptions().dtype(type).device(c.device()),
                          [&](at::Tensor& t, const auto& generator) { t.uniform_(low, high, generator); }));
  };
});

ORTMODULE_KERNEL("", Bernoulli, "aten", [](const Node& node) -> Kernel {
  return [seeded = Seeded(node), dtype = node.get_int("dtype", 0)](KernelContext& c) {
    const at::Tensor& p = c.in(0);
    const auto type = dtype ? to_scalar_type(static_cast<DType>(dtype)) : p.scalar_type();
    const at::Tensor drawn = seeded.like(
        p, p.scalar_type(), [&](at::Tensor& t, const auto& generator) { t.bernoulli_(p.to(t.device()), generator); });
    c.out(0, drawn.to(type));
  };
});

ORTMODULE_KERNEL("", Multinomial, "aten", [](const Node& node) -> Kernel {
  return [seeded = Seeded(node), samples = node.get_int("sample_size", 1),
          type = type_attribute(node, DType::kInt32)](KernelContext& c) {
    at::Tensor p = at::softmax(c.in(0), -1);
    if (seeded.generator()) p = p.cpu();
    c.out(0, at::multinomial(p, samples, true, seeded.generator()).to(type).to(c.in(0).device()));
  };
});

}  // namespace
}  // namespace ortmodule
