// ATen kernels of Sum, Mean, Min and Max.
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "kernels/kernel_context.h"
#include "kernels/small_tensor.h"
#include "ops/elementwise/short_sum.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Sums into the first operand that has the result's sizes and whose memory may be taken; else the first addition
// allocates and the rest adds to that. An operand larger than the sum so far (broadcasting) allocates again.
void sum(KernelContext& c) {
  const size_t n = c.input_count();
  size_t taken = 0;
  bool own = false;
  for (size_t i = 0; i < n && !own; ++i) {
    if (!c.may_overwrite(i)) continue;
    own = true;
    for (size_t j = 0; j < n && own; ++j) own = c.in(j).sizes() == c.in(i).sizes();
    if (own) taken = i;
  }
  at::Tensor total = c.in(taken);
  for (size_t i = 0; i < n; ++i) {
    if (i == taken) continue;
    const at::Tensor& next = c.in(i);
    if (is_short_sum(total, next)) {
      const at::Tensor out = own ? total : make_float(total.sizes());
      short_sum(total, next, out);
      total = out;
    } else if (own && total.sizes() == next.sizes()) {
      total.add_(next);
    } else {
      total = at::add(total, next);
    }
    own = true;
  }
  c.out(0, own ? std::move(total) : total.clone());
}

ORTMODULE_KERNEL("", Sum, "aten", [](const Node&) -> Kernel { return sum; }).inplace();

ORTMODULE_KERNEL("", Mean, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const auto n = static_cast<int64_t>(c.input_count());
    if (n == 1) return c.out(0, c.in(0).clone());
    at::Tensor total = at::add(c.in(0), c.in(1));
    for (size_t i = 2; i < c.input_count(); ++i)
      total = total.sizes() == c.in(i).sizes() ? total.add_(c.in(i)) : at::add(total, c.in(i));
    c.out(0, total.div_(n));
  };
});

template <at::Tensor (*pair)(const at::Tensor&, const at::Tensor&)>
Kernel chain(const Node&) {
  return [](KernelContext& c) {
    at::Tensor result = c.input_count() == 1 ? c.in(0).clone() : pair(c.in(0), c.in(1));
    for (size_t i = 2; i < c.input_count(); ++i) result = pair(result, c.in(i));
    c.out(0, std::move(result));
  };
}

ORTMODULE_KERNEL("", Max, "aten", chain<at::maximum>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", Min, "aten", chain<at::minimum>).rare_types(RareTypes::kOrdered);

}  // namespace
}  // namespace ortmodule
