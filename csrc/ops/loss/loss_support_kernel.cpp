#include "ops/loss/loss_support.h"

#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace ortmodule {

at::Tensor int64_labels(const at::Tensor& labels) {
  return labels.scalar_type() == at::kLong ? labels : labels.to(at::kLong);
}

LabelGradient label_gradient(const at::Tensor& dy, const at::Tensor& labels, const at::Tensor& weight,
                             const LossOptions& options) {
  const at::Tensor valid = at::ne(labels, options.ignore_index);
  const at::Tensor index = at::where(valid, labels, at::zeros_like(labels));
  at::Tensor each = weight.defined() ? weight.to(dy.scalar_type()).take(index).mul_(valid) : valid.to(dy.scalar_type());
  at::Tensor factor = at::mul(each, dy);
  if (options.reduction == LossOptions::kMean)
    factor = at::where(valid, at::div(factor, at::sum(each)), at::zeros_like(factor));
  return {factor.unsqueeze(1), index.unsqueeze(1)};
}

}  // namespace ortmodule
