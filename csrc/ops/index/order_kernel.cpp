// ATen kernels of TopK, as the standard and as torch give it, of Sort and of Histogram.
#include <ATen/ops/eq.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <limits>
#include <optional>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Types that torch does not sort, as integers of the same order.
at::Tensor sortable(const at::Tensor& x) {
  if (x.scalar_type() == at::kUInt64) return x.view(at::kLong).bitwise_xor(std::numeric_limits<int64_t>::min());
  if (x.scalar_type() == at::kUInt32 || x.scalar_type() == at::kUInt16) return x.to(at::kLong);
  return x;
}

// Among equal values the standard takes the lower position first. torch's topk takes any: it serves where a look at
// one value more than asked for shows no tie, and a stable sort does the rest.
std::tuple<at::Tensor, at::Tensor> top_k(const at::Tensor& x, int64_t k, int64_t axis, bool largest) {
  const int64_t n = x.size(axis);
  if (x.is_cpu() && k < n) {
    auto [values, indices] = at::topk(x, k + 1, axis, largest, true);
    const at::Tensor before = values.narrow(axis, 0, k), after = values.narrow(axis, 1, k);
    if (!at::eq(before, after).any().item<bool>())
      return {before.contiguous(), indices.narrow(axis, 0, k).contiguous()};
  }
  auto [values, indices] = at::sort(x, std::optional<bool>(true), axis, largest);
  return {values.narrow(axis, 0, k).contiguous(), indices.narrow(axis, 0, k).contiguous()};
}

ORTMODULE_KERNEL("", TopK, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", -1);
  const bool largest = node.get_int("largest", 1) != 0;
  return [given, largest, k_input = HostInts(node, 1)](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t axis = positive_axis(given, x.dim(), "TopK"), k = k_input.value(c, 1);
    ORTMODULE_CHECK(k >= 0 && k <= x.size(axis), kRuntime, "[TopK] K is ", k, ", the axis has size ", x.size(axis));
    const at::Tensor keys = sortable(x);
    auto [values, indices] = top_k(keys, k, axis, largest);
    c.out(0, keys.is_same(x) ? std::move(values) : x.gather(axis, indices));
    c.out(1, std::move(indices));
  };
}).rare_types(RareTypes::kOrdered);

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
