// ATen kernels of ONNX Runtime's training operators.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<int64_t> host_ints(const at::Tensor& t) {
  const at::Tensor host = t.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

void bias_dropout(KernelContext& c) {
  at::Tensor y = at::add(c.in(0), c.in(1));
  const double ratio = c.has(3) ? c.double_value(3) : 0.5;
  ORTMODULE_CHECK(ratio >= 0 && ratio < 1, kRuntime, "[BiasDropout] ratio should be in [0, 1), got ", ratio);
  const bool training = c.has(4) && c.double_value(4) != 0 && ratio > 0;
  const at::Tensor mask = training ? at::empty_like(y, at::kBool).bernoulli_(1 - ratio) : at::Tensor();
  if (training) y.mul_(mask).mul_(1 / (1 - ratio));
  if (c.has(2)) y.add_(c.in(2));
  if (c.wants(1)) c.out(1, training ? mask : at::ones_like(y, at::kBool));
  c.out(0, std::move(y));
}

ORTMODULE_KERNEL("com.microsoft", BiasDropout, "aten", [](const Node&) -> Kernel { return bias_dropout; });

ORTMODULE_KERNEL("com.microsoft", SoftmaxDropoutGrad, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", -1)](KernelContext& c) {
    const double ratio = c.has(3) ? c.double_value(3) : 0.5;
    ORTMODULE_CHECK(ratio >= 0 && ratio < 1, kRuntime, "[SoftmaxDropoutGrad] ratio should be in [0, 1), got ", ratio);
    const at::Tensor &y = c.in(2), dy = at::mul(c.in(0), c.in(1)).mul_(1 / (1 - ratio));
    c.out(0, at::_softmax_backward_data(dy, y, positive_axis(axis, y.dim(), "SoftmaxDropoutGrad"), y.scalar_type()));
  };
});

TensorFunction reduce_all_l2(const Node&) {
  return [](const Tensors& in) -> Tensors {
    at::Tensor sum;
    for (const at::Tensor& x : in) {
      const at::Tensor square = x.to(at::kFloat).square().sum();
      sum = sum.defined() ? at::add(sum, square) : square;
    }
    ORTMODULE_CHECK(sum.defined(), kRuntime, "[ReduceAllL2] at least one input is needed");
    return {at::sqrt(sum)};
  };
}

TensorFunction concat_training(const Node& node) {
  return [axis = node.get_int("axis", 0)](const Tensors& in) -> Tensors {
    std::vector<int64_t> lengths;
    for (const at::Tensor& x : in) lengths.push_back(x.size(axis));
    return {at::cat(in, axis), at::tensor(lengths, at::TensorOptions().dtype(at::kLong))};
  };
}

TensorFunction split_training(const Node& node) {
  return [axis = node.get_int("axis", 0)](const Tensors& in) -> Tensors {
    return in[0].split_with_sizes(host_ints(in[1]), axis);
  };
}

TensorFunction shrunken_gather(const Node& node) {
  return [axis = node.get_int("axis", 0)](const Tensors& in) -> Tensors {
    const int64_t a = positive_axis(axis, in[0].dim(), "ShrunkenGather");
    const at::Tensor indices = in[1].to(at::kLong);
    return {in[0].index_select(a, at::where(indices.lt(0), indices.add(in[0].size(a)), indices))};
  };
}

TensorFunction pad_and_unflatten(const Node& node) {
  return [name = node.describe()](const Tensors& in) -> Tensors {
    const std::vector<int64_t> dims = host_ints(in[2]);
    ORTMODULE_CHECK(dims.size() == 2 && dims[0] >= 0 && dims[1] >= 0 && in[0].dim() > 0, kRuntime,
                    "[PadAndUnflatten] expected two sizes in unflatten_dims (", name, ")");
    std::vector<int64_t> rows(in[0].sizes().begin(), in[0].sizes().end());
    ORTMODULE_CHECK(!__builtin_mul_overflow(dims[0], dims[1], rows.data()), kRuntime, "[PadAndUnflatten] ", dims[0],
                    " times ", dims[1], " rows (", name, ")");
    const at::Tensor padded = at::zeros(rows, in[0].options()).index_copy(0, in[1].to(at::kLong), in[0]);
    return {padded.unflatten(0, dims)};
  };
}

TensorFunction flatten_and_unpad(const Node&) {
  return [](const Tensors& in) -> Tensors {
    const std::vector<int64_t> dims{in[0].size(0), in[0].size(1)};
    return {in[0].flatten(0, 1).index_select(0, in[1].to(at::kLong)),
            at::tensor(dims, at::TensorOptions().dtype(at::kLong))};
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", ReduceAllL2, "aten", function_kernel_of<reduce_all_l2>);
ORTMODULE_KERNEL("ai.ortmodule", ReduceAllL2Grad, "aten", rerun_kernel_of<reduce_all_l2>);
ORTMODULE_KERNEL("com.microsoft", ConcatTraining, "aten", function_kernel_of<concat_training>);
ORTMODULE_KERNEL("ai.ortmodule", ConcatTrainingGrad, "aten", rerun_kernel_of<concat_training>);
ORTMODULE_KERNEL("com.microsoft", SplitTraining, "aten", function_kernel_of<split_training>);
ORTMODULE_KERNEL("ai.ortmodule", SplitTrainingGrad, "aten", rerun_kernel_of<split_training>);
ORTMODULE_KERNEL("com.microsoft", ShrunkenGather, "aten", function_kernel_of<shrunken_gather>);
ORTMODULE_KERNEL("ai.ortmodule", ShrunkenGatherGrad, "aten", rerun_kernel_of<shrunken_gather>);
ORTMODULE_KERNEL("com.microsoft", PadAndUnflatten, "aten", function_kernel_of<pad_and_unflatten>);
ORTMODULE_KERNEL("ai.ortmodule", PadAndUnflattenGrad, "aten", rerun_kernel_of<pad_and_unflatten>);
ORTMODULE_KERNEL("com.microsoft", FlattenAndUnpad, "aten", function_kernel_of<flatten_and_unpad>);
ORTMODULE_KERNEL("ai.ortmodule", FlattenAndUnpadGrad, "aten", rerun_kernel_of<flatten_and_unpad>);

}  // namespace ortmodule
