// Kernels of GroupedMatMul and GroupedMatMulGrad: one product per run of rows, written in place of its result.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Calls run(group, start, length) for each run that is not empty, then rest(start) for the rows behind the last.
template <class Run>
int64_t for_each_run(const at::Tensor& ends, int64_t rows, Run run) {
  const at::Tensor host = ends.to(at::kCPU, at::kLong).contiguous();
  const int64_t* end = host.const_data_ptr<int64_t>();
  int64_t start = 0;
  for (int64_t g = 0; g < host.numel(); ++g) {
    ORTMODULE_CHECK(end[g] >= start && end[g] <= rows, kRuntime, "[GroupedMatMul] ends should rise up to ", rows,
                    ", ends[", g, "] is ", end[g], " after ", start);
    if (end[g] > start) run(g, start, end[g] - start);
    start = end[g];
  }
  return start;
}

void grouped_matmul(KernelContext& c) {
  const at::Tensor &x = c.in(0), &w = c.in(1);
  at::Tensor y = at::empty({x.size(0), w.size(2)}, x.options());
  const int64_t covered = for_each_run(c.in(2), x.size(0), [&](int64_t g, int64_t start, int64_t length) {
    at::Tensor out = y.narrow(0, start, length);
    at::mm_out(out, x.narrow(0, start, length), w.select(0, g));
  });
  y.narrow(0, covered, y.size(0) - covered).zero_();
  c.out(0, std::move(y));
}

void grouped_matmul_grad(KernelContext& c) {
  const at::Tensor &dy = c.in(0), &ends = c.in(3);
  if (c.wants(0)) {
    const at::Tensor& w = c.in(2);
    at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
    const int64_t covered = for_each_run(ends, dy.size(0), [&](int64_t g, int64_t start, int64_t length) {
      at::Tensor out = dx.narrow(0, start, length);
      at::mm_out(out, dy.narrow(0, start, length), w.select(0, g).t());
    });
    dx.narrow(0, covered, dx.size(0) - covered).zero_();
    c.out(0, std::move(dx));
  }
  if (c.wants(1)) {
    const at::Tensor& x = c.in(1);
    at::Tensor dw = at::empty({ends.size(0), x.size(1), dy.size(1)}, dy.options());
    int64_t next = 0;  // groups without rows have a zero gradient
    for_each_run(ends, dy.size(0), [&](int64_t g, int64_t start, int64_t length) {
      for (; next < g; ++next) dw.select(0, next).zero_();
      at::Tensor out = dw.select(0, g);
      at::mm_out(out, x.narrow(0, start, length).t(), dy.narrow(0, start, length));
      next = g + 1;
    });
    for (; next < dw.size(0); ++next) dw.select(0, next).zero_();
    c.out(1, std::move(dw));
  }
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", GroupedMatMul, "aten", [](const Node&) -> Kernel { return grouped_matmul; });
ORTMODULE_KERNEL("ai.ortmodule", GroupedMatMulGrad, "aten", [](const Node&) -> Kernel { return grouped_matmul_grad; });

}  // namespace ortmodule
