// ATen kernels of the unary mathematics.
#include <ATen/ops/abs.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>

#include "ops/elementwise/unary_kernel.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Exp, "aten", unary_kernel<at::exp, at::exp_>).inplace();
ORTMODULE_KERNEL("", Log, "aten", unary_kernel<at::log, at::log_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Expm1, "aten", unary_kernel<at::expm1, at::expm1_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Log1p, "aten", unary_kernel<at::log1p, at::log1p_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Exp2, "aten", unary_kernel<at::exp2, at::exp2_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Log2, "aten", unary_kernel<at::log2, at::log2_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Log10, "aten", unary_kernel<at::log10, at::log10_>).inplace();
ORTMODULE_KERNEL("", Sqrt, "aten", unary_kernel<at::sqrt, at::sqrt_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", Rsqrt, "aten", unary_kernel<at::rsqrt, at::rsqrt_>).inplace();
ORTMODULE_KERNEL("", Reciprocal, "aten", unary_kernel<at::reciprocal, at::reciprocal_>).inplace();
ORTMODULE_KERNEL("", Neg, "aten", unary_kernel<at::neg, at::neg_>).inplace();
ORTMODULE_KERNEL("", Abs, "aten", unary_kernel<at::abs, at::abs_>).inplace();
// The conversion to int64 would give large uint64 a sign.
ORTMODULE_KERNEL("", Abs, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, c.in(0).clone()); }; })
    .types({DType::kUInt64})
    .rare_types(RareTypes::kAsIs);
ORTMODULE_KERNEL("", Cos, "aten", unary_kernel<at::cos, at::cos_>).inplace();
ORTMODULE_KERNEL("", Sin, "aten", unary_kernel<at::sin, at::sin_>).inplace();
ORTMODULE_KERNEL("", Erf, "aten", unary_kernel<at::erf, at::erf_>).inplace();
ORTMODULE_KERNEL("", Floor, "aten", unary_kernel<at::floor, at::floor_>).inplace();
ORTMODULE_KERNEL("", Ceil, "aten", unary_kernel<at::ceil, at::ceil_>).inplace();
ORTMODULE_KERNEL("", Round, "aten", unary_kernel<at::round, at::round_>).inplace();
ORTMODULE_KERNEL("", Sign, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel([](at::Tensor& t, KernelContext&) { t.sign_(); },
                            [](KernelContext& c) { return at::sign(c.in(0)); });
}).inplace();
ORTMODULE_KERNEL("", Sign, "aten",
                 [](const Node&) -> Kernel {
                   return [](KernelContext& c) { c.out(0, at::ne(c.in(0), 0).to(at::kUInt64)); };
                 })
    .types({DType::kUInt64})
    .rare_types(RareTypes::kAsIs);

}  // namespace
}  // namespace ortmodule
