// "aten" kernel of ConcatSum.
#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include <numeric>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", ConcatSum, "aten", [](const Node& node) -> Kernel {
  return [wide = node.get_int("wide", 0) != 0](KernelContext& c) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < c.input_count(); ++i) parts.push_back(c.in(i));
    at::Tensor whole = at::cat(parts, -1);
    if (c.wants(1)) {
      std::vector<int64_t> axes(static_cast<size_t>(whole.dim() - 1));
      std::iota(axes.begin(), axes.end(), 0);
      const at::Tensor terms = wide ? whole.to(at::kFloat) : whole;
      c.out(1, axes.empty() ? terms.clone() : terms.sum(axes));
    }
    c.out(0, std::move(whole));
  };
});

}  // namespace ortmodule
