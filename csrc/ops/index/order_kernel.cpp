// ATen kernels of the own domain's TopK and Sort, and of Histogram.
#include <ATen/ops/histc.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <optional>

#include "ops/host_values.h"
#include "ops/kernel_context.h"
#include "ops/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("ai.ortmodule", TopK, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", -1);
  const bool largest = node.get_int("largest", 1) != 0, sorted = node.get_int("sorted", 1) != 0;
  return [=, k_input = HostInts(node, 1)](KernelContext& c) {
    auto [values, indices] = at::topk(c.in(0), k_input.value(c, 1), axis, largest, sorted);
    c.out(0, std::move(values));
    c.out(1, std::move(indices));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", Sort, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", -1);
  const bool descending = node.get_int("descending", 0) != 0, stable = node.get_int("stable", 0) != 0;
  return [=](KernelContext& c) {
    auto [values, indices] = at::sort(c.in(0), std::optional<bool>(stable), axis, descending);
    c.out(0, std::move(values));
    c.out(1, std::move(indices));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", Histogram, "aten", [](const Node& node) -> Kernel {
  const int64_t bins = node.get_int("bins", 1);
  const double low = node.get_float("low", 0), high = node.get_float("high", 1);
  return [=](KernelContext& c) { c.out(0, at::histc(c.in(0), bins, low, high)); };
});

}  // namespace
}  // namespace ortmodule
