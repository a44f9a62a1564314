// ATen kernels of com.microsoft's normalizations.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor at_or_none(const Tensors& in, size_t i) { return i < in.size() ? in[i] : at::Tensor(); }

at::Tensor plus(const at::Tensor& sum, const at::Tensor& more) { return more.defined() ? at::add(sum, more) : sum; }

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

// y, mean, inverse deviation over the last axis
Tensors layer_norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta, double epsilon) {
  auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, gamma, beta, epsilon);
  return {y, widened(mean), widened(rstd)};
}

// y, inverse root mean square over the axes from `axis` on
Tensors rms_norm(const at::Tensor& x, const at::Tensor& scale, int64_t axis, double epsilon) {
  const at::Tensor wide = widened(x);
  c10::DimVector axes;
  for (int64_t i = positive_axis(axis, x.dim(), "SimplifiedLayerNormalization"); i < x.dim(); ++i) axes.push_back(i);
  const at::Tensor inverse = at::rsqrt(at::add(at::mean(wide.square(), axes, true), epsilon));
  return {at::mul(at::mul(wide, inverse).to(x.scalar_type()), scale).to(x.scalar_type()), inverse};
}

TensorFunction skip_layer_norm(const Node& node) {
  return [epsilon = node.get_float("epsilon", 1e-12)](const Tensors& in) -> Tensors {
    const at::Tensor sum = plus(at::add(in[0], in[1]), at_or_none(in, 4));
    const Tensors y = layer_norm(sum, in[2], at_or_none(in, 3), epsilon);
    return {y[0], y[1], y[2], sum};
  };
}

TensorFunction skip_rms_norm(const Node& node) {
  const bool forward = node.op() == "SkipSimplifiedLayerNormalization";
  ORTMODULE_CHECK(!forward || !node.output(1), kUnsupported,
                  "[SkipSimplifiedLayerNormalization] the output 'mean' is not computed (", node.describe(), ")");
  return [epsilon = node.get_float("epsilon", 1e-12)](const Tensors& in) -> Tensors {
    const at::Tensor sum = plus(at::add(in[0], in[1]), at_or_none(in, 3));
    const Tensors y = rms_norm(sum, in[2], -1, epsilon);
    return {y[0], at::Tensor(), y[1], sum};
  };
}

TensorFunction simplified_layer_norm(const Node& node) {
  return [axis = node.get_int("axis", -1), epsilon = node.get_float("epsilon", 1e-5)](const Tensors& in) {
    return rms_norm(in[0], in[1], axis, epsilon);
  };
}

TensorFunction embed_layer_norm(const Node& node) {
  return [epsilon = node.get_float("epsilon", 1e-12), name = node.describe()](const Tensors& in) -> Tensors {
    const at::Tensor &ids = in[0], segments = at_or_none(in, 1), segment_embedding = at_or_none(in, 4),
                     mask = at_or_none(in, 7), given = at_or_none(in, 8);
    ORTMODULE_CHECK(ids.dim() == 2 && segments.defined() == segment_embedding.defined(), kRuntime,
                    "[EmbedLayerNormalization] input_ids should have rank 2, and segment_ids come with an embedding (",
                    name, ")");
    const at::Tensor positions = given.defined() ? given : at::arange(ids.size(1), ids.options()).unsqueeze(0);
    at::Tensor sum = at::add(at::embedding(in[2], ids), at::embedding(in[3], positions));
    if (segments.defined()) sum = at::add(sum, at::embedding(segment_embedding, segments));
    const at::Tensor counts =
        mask.defined() ? at::sum(mask, {1}, false, at::kInt) : at::zeros({ids.size(0)}, ids.options().dtype(at::kInt));
    return {layer_norm(sum, in[5], in[6], epsilon)[0], counts, sum};
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

ORTMODULE_KERNEL("com.microsoft", SkipLayerNormalization, "aten", function_kernel_of<skip_layer_norm>);
ORTMODULE_KERNEL("ai.ortmodule", SkipLayerNormalizationGrad, "aten", rerun_kernel_of<skip_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", SkipSimplifiedLayerNormalization, "aten", function_kernel_of<skip_rms_norm>);
ORTMODULE_KERNEL("ai.ortmodule", SkipSimplifiedLayerNormalizationGrad, "aten", rerun_kernel_of<skip_rms_norm>);
ORTMODULE_KERNEL("", SimplifiedLayerNormalization, "aten", function_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", SimplifiedLayerNormalization, "aten", function_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("ai.ortmodule", SimplifiedLayerNormalizationGrad, "aten", rerun_kernel_of<simplified_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", EmbedLayerNormalization, "aten", function_kernel_of<embed_layer_norm>);
ORTMODULE_KERNEL("ai.ortmodule", EmbedLayerNormalizationGrad, "aten", rerun_kernel_of<embed_layer_norm>);
ORTMODULE_KERNEL("com.microsoft", BiasSoftmax, "aten", function_kernel_of<bias_softmax>);
ORTMODULE_KERNEL("ai.ortmodule", BiasSoftmaxGrad, "aten", rerun_kernel_of<bias_softmax>);

}  // namespace ortmodule
