// ATen kernels of the trigonometric and hyperbolic functions.
#include <ATen/ops/acos.h>
#include <ATen/ops/acosh.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/asinh.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atanh.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/tan.h>

#include "ops/elementwise/unary_kernel.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", Acos, "aten", unary_kernel<at::acos, at::acos_>).inplace();
ORTMODULE_KERNEL("", Acosh, "aten", unary_kernel<at::acosh, at::acosh_>).inplace();
ORTMODULE_KERNEL("", Asin, "aten", unary_kernel<at::asin, at::asin_>).inplace();
ORTMODULE_KERNEL("", Asinh, "aten", unary_kernel<at::asinh, at::asinh_>).inplace();
ORTMODULE_KERNEL("", Atan, "aten", unary_kernel<at::atan, at::atan_>).inplace();
ORTMODULE_KERNEL("", Atanh, "aten", unary_kernel<at::atanh, at::atanh_>).inplace();
ORTMODULE_KERNEL("", Cosh, "aten", unary_kernel<at::cosh, at::cosh_>).inplace();
ORTMODULE_KERNEL("", Sinh, "aten", unary_kernel<at::sinh, at::sinh_>).inplace();
ORTMODULE_KERNEL("", Tan, "aten", unary_kernel<at::tan, at::tan_>).inplace();

}  // namespace
}  // namespace ortmodule
