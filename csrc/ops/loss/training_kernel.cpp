// Kernels of the losses in training.cpp: each as a function that autograd can differentiate, and the gradient operators
// from log-probabilities.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/conversion.h"
#include "kernels/rerun_kernel.h"
#include "ops/loss/loss_support.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor optional(const Tensors& in, size_t i) { return i < in.size() ? in[i] : at::Tensor(); }

// -- classes on the second axis
// ----------------------------------------------------------------------------------------

// Inputs: log-probabilities or scores, labels, weights, ignore_index.
at::Tensor likelihood_of(const at::Tensor& log_prob, const Tensors& in, LossOptions::Reduction reduction) {
  const int64_t ignored = int_of(optional(in, 3), -100);
  at::Tensor weight = optional(in, 2);
  if (weight.defined()) weight = weight.to(log_prob.scalar_type());
  return at::nll_loss_nd(log_prob, int64_labels(in[1]), weight, reduction, ignored);
}

TensorFunction likelihood(const Node& node) {
  return [reduction = LossOptions(node).reduction](const Tensors& in) -> Tensors {
    return {likelihood_of(in[0].contiguous(), in, reduction)};  // its backward takes no other strides
  };
}

TensorFunction cross_entropy(const Node& node) {
  return
      [reduction = LossOptions(node).reduction, type = node.get_int("output_type", 0)](const Tensors& in) -> Tensors {
        const at::Tensor log_prob = at::log_softmax(in[0], 1);
        const at::Tensor loss = likelihood_of(log_prob, in, reduction);
        return {type ? loss.to(to_scalar_type(static_cast<DType>(type))) : loss, log_prob};
      };
}

// -- classes on the last axis
// ------------------------------------------------------------------------------------------

at::Tensor reduced(const at::Tensor& losses, const at::Tensor& total, LossOptions::Reduction reduction) {
  if (reduction == LossOptions::kNone) return losses;
  return reduction == LossOptions::kSum ? losses.sum() : losses.sum().div(total);
}

void check_rows(const at::Tensor& logits, const at::Tensor& given, c10::IntArrayRef expected, const char* what) {
  ORTMODULE_CHECK(logits.dim() > 0 && given.sizes() == expected, kRuntime, "[SoftmaxCrossEntropy] expected ", what,
                  " of shape ", expected, ", got ", given.sizes());
}

at::Tensor row_count(const at::Tensor& losses) {
  return at::scalar_tensor(static_cast<double>(losses.numel()), losses.options());
}

TensorFunction distribution(const Node& node) {
  return [reduction = LossOptions(node).reduction](const Tensors& in) -> Tensors {
    check_rows(in[0], in[1], in[0].sizes(), "labels");
    const auto type = in[0].scalar_type();
    const at::Tensor log_prob = at::log_softmax(in[0].to(computed_in(in[0].scalar_type())), -1);
    const at::Tensor losses = at::mul(log_prob, in[1]).sum(-1).neg();
    return {reduced(losses, row_count(losses), reduction).to(type), log_prob.to(type)};
  };
}

TensorFunction sparse(const Node& node) {
  return [reduction = LossOptions(node).reduction](const Tensors& in) -> Tensors {
    check_rows(in[0], in[1], in[0].sizes().slice(0, std::max<int64_t>(in[0].dim(), 1) - 1), "labels");
    const auto type = in[0].scalar_type();
    const at::Tensor log_prob = at::log_softmax(in[0].to(computed_in(in[0].scalar_type())), -1);
    at::Tensor losses = log_prob.gather(-1, int64_labels(in[1]).unsqueeze(-1)).squeeze(-1).neg();
    at::Tensor total = row_count(losses);
    if (const at::Tensor weight = optional(in, 2); weight.defined()) {
      check_rows(in[0], weight, in[1].sizes(), "weights");
      losses = at::mul(losses, weight.to(losses.scalar_type()));
      total = weight.to(losses.scalar_type()).sum();
    }
    return {reduced(losses, total, reduction).to(type), log_prob.to(type)};
  };
}

// -- gradients from log-probabilities
// ----------------------------------------------------------------------------------

// softmax * factor, from which the factor goes at the labels; `axis` is that of the classes.
at::Tensor label_difference(const at::Tensor& log_prob, const LabelGradient& g, int64_t axis) {
  at::Tensor d = at::exp(log_prob).mul_(g.factor);
  return d.scatter_add_(axis, g.index, g.factor.neg().expand(g.index.sizes()));
}

Kernel label_loss_grad(const Node& node) {
  LossOptions given(node);
  const bool internal = node.op() == "SoftmaxCrossEntropyLossInternalGrad";
  if (internal) given.ignore_index = -100;
  return [given, internal, type = node.get_int("output_type", 0)](KernelContext& c) {
    LossOptions options = given;
    if (internal && c.has(4)) options.ignore_index = c.int_value(4);
    const at::Tensor log_prob = c.in(1).to(computed_in(c.in(1).scalar_type()));
    at::Tensor weight = c.in_or_undefined(3);
    const LabelGradient g = label_gradient(c.in(0).to(log_prob.scalar_type()), int64_labels(c.in(2)), weight, options);
    at::Tensor d = label_difference(log_prob, g, 1);
    if (internal && c.has(5)) d = at::add(d, c.in(5).view(d.sizes()));
    c.out(0, d.to(type ? to_scalar_type(static_cast<DType>(type)) : c.in(1).scalar_type()));
  };
}

// Of the loss by rows: dY itself, or its share of the mean over `total`.
at::Tensor row_gradient(const at::Tensor& dy, const at::Tensor& total, LossOptions::Reduction reduction) {
  if (reduction == LossOptions::kNone) return dy.unsqueeze(-1);
  return reduction == LossOptions::kMean ? dy.div(total) : dy;
}

Kernel distribution_grad(const Node& node) {
  return [reduction = LossOptions(node).reduction](KernelContext& c) {
    check_rows(c.in(1), c.in(2), c.in(1).sizes(), "labels");
    const at::Tensor log_prob = c.in(1).to(computed_in(c.in(1).scalar_type())),
                     label = c.in(2).to(log_prob.scalar_type());
    const at::Tensor weight = label.sum(-1, true);  // one for a distribution
    const at::Tensor dy = row_gradient(c.in(0).to(log_prob.scalar_type()), row_count(weight), reduction);
    c.out(0, at::exp(log_prob).mul_(weight).sub_(label).mul_(dy).to(c.in(1).scalar_type()));
  };
}

Kernel sparse_grad(const Node& node) {
  return [reduction = LossOptions(node).reduction](KernelContext& c) {
    const at::Tensor log_prob = c.in(1).to(computed_in(c.in(1).scalar_type()));
    check_rows(log_prob, c.in(2), log_prob.sizes().slice(0, std::max<int64_t>(log_prob.dim(), 1) - 1), "labels");
    const at::Tensor labels = int64_labels(c.in(2));
    at::Tensor weight, total = row_count(labels.to(log_prob.scalar_type()));
    if (c.has(3)) {
      check_rows(log_prob, c.in(3), labels.sizes(), "weights");
      weight = c.in(3).to(log_prob.scalar_type());
      total = weight.sum();
    }
    at::Tensor dy = row_gradient(c.in(0).to(log_prob.scalar_type()), total, reduction);
    if (weight.defined()) dy = at::mul(dy, weight.unsqueeze(-1));
    const LabelGradient g{dy.expand(labels.unsqueeze(-1).sizes()), labels.unsqueeze(-1)};
    c.out(0, label_difference(log_prob, g, -1).to(c.in(1).scalar_type()));
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", SoftmaxCrossEntropyLossInternal, "aten", function_kernel_of<cross_entropy>);
ORTMODULE_KERNEL("ai.ortmodule", CrossEntropyInternalGrad, "aten", rerun_kernel_of<cross_entropy>);
ORTMODULE_KERNEL("com.microsoft", NegativeLogLikelihoodLossInternal, "aten", function_kernel_of<likelihood>);
ORTMODULE_KERNEL("com.microsoft", NegativeLogLikelihoodLossInternal2, "aten", function_kernel_of<likelihood>);
ORTMODULE_KERNEL("ai.ortmodule", LikelihoodInternalGrad, "aten", rerun_kernel_of<likelihood>);
ORTMODULE_KERNEL("com.microsoft", SoftmaxCrossEntropy, "aten", function_kernel_of<distribution>);
ORTMODULE_KERNEL("ai.ortmodule", DistributionCrossEntropyGrad, "aten", rerun_kernel_of<distribution>);
ORTMODULE_KERNEL("", SparseSoftmaxCrossEntropy, "aten", function_kernel_of<sparse>);
ORTMODULE_KERNEL("ai.ortmodule", SparseCrossEntropyGrad, "aten", rerun_kernel_of<sparse>);
ORTMODULE_KERNEL("com.microsoft", SoftmaxCrossEntropyGrad, "aten", distribution_grad);
ORTMODULE_KERNEL("", SparseSoftmaxCrossEntropyGrad, "aten", sparse_grad);
ORTMODULE_KERNEL("com.microsoft", SoftmaxCrossEntropyLossGrad, "aten", label_loss_grad);
ORTMODULE_KERNEL("com.microsoft", SoftmaxCrossEntropyLossInternalGrad, "aten", label_loss_grad);

}  // namespace ortmodule
