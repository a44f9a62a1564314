// ATen kernels of LpNormalization and MeanVarianceNormalization.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>

#include <limits>

#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

TensorFunction lp_normalization(const Node& node) {
  const int64_t axis = node.get_int("axis", -1), p = node.get_int("p", 2);
  return [axis, p](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor norm = at::linalg_vector_norm(in[0], p, axis, true);
    return {at::div(in[0], norm.masked_fill(norm.eq(0), std::numeric_limits<double>::infinity()))};
  };
}

TensorFunction mean_variance_normalization(const Node& node) {
  const std::vector<int64_t> axes = node.get_ints("axes", {0, 2, 3});
  return [axes](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor centered = at::sub(in[0], at::mean(in[0], axes, true));
    const at::Tensor deviation = at::sqrt(at::mean(centered.square(), axes, true));
    return {at::div(centered, at::add(deviation, 1e-9))};
  };
}

ORTMODULE_KERNEL("", LpNormalization, "aten", function_kernel_of<lp_normalization>);
ORTMODULE_KERNEL("ai.ortmodule", LpNormalizationGrad, "aten", rerun_kernel_of<lp_normalization>);
ORTMODULE_KERNEL("", MeanVarianceNormalization, "aten", function_kernel_of<mean_variance_normalization>);
ORTMODULE_KERNEL("ai.ortmodule", MeanVarianceNormalizationGrad, "aten", rerun_kernel_of<mean_variance_normalization>);

}  // namespace
}  // namespace ortmodule
