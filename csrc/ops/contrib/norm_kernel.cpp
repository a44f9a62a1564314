// ATen kernels of com.microsoft's SimplifiedLayerNormalization and BiasSoftmax.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

// y, inverse root mean square over the axes from `axis` on
Tensors rms_norm(const at::Tensor& x, const at::Tensor& scale, int64_t axis, double epsilon) {
  const at::Tensor wide = widened(x);
  c10::DimVector axes;
  for (int64_t i = positive_axis(axis, x.dim(), "SimplifiedLayerNormalization"); i < x.dim(); ++i) axes.push_back(i);
  const at::Tensor inverse = at::rsqrt(at::add(at::mean(wide.square(), axes, true), epsilon));
  return {at::mul(at::mul(wide, inverse).to(x.scalar_type()), scale).to(x.scalar_type()), inverse};
}

TensorFunction simplified_layer_norm(const Node& node) {
  return [axis = node.get_int("axis", -1), epsilon = node.get_float("epsilon", 1e-5)](const Tensors& in) {
    return rms_norm(in[0], in[1], axis, epsilon);
  };
}

TensorFunction bias_softmax(const Node& node) {
  return [axis = node.get_int("axis", 1)](const Tensors& in) -> Tensors {
    const at::Tensor sum = at::add(in[0], in[1]);
    const int64_t first = positive_axis(axis, sum.dim(), "BiasSoftmax");
    return {at::softmax(sum.flatten(first), first).view(sum.sizes())};
  };
}

}  // namespace

ORTMODULE_KERNEL("", SimplifiedLayerNormalization, "aten", function_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", SimplifiedLayerNormalization, "aten", function_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("ai.ortmodule", SimplifiedLayerNormalizationGrad, "aten", rerun_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", BiasSoftmax, "aten", function_kernel_of<bias_softmax>);
ORTMODULE_KERNEL("ai.ortmodule", BiasSoftmaxGrad, "aten", rerun_kernel_of<bias_softmax>);

}  // namespace ortmodule
