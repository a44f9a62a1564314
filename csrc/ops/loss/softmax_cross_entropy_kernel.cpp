// Kernels of SoftmaxCrossEntropyLoss and its gradient; see Note [Two numbers per row] beside the record.
//
// "cpu": float scores[N, C] in one pass over memory forward (a row stays in cache between its maximum and its sum) and
// one backward, in place where possible. "aten": every other shape, type and device.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/small_tensor.h"
#include "ops/loss/loss_rows.h"
#include "ops/loss/loss_support.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

void aten_forward(KernelContext& c, const LossOptions& options) {
  const at::Tensor scores = c.in(0).to(computed_in(c.in(0).scalar_type()));
  const at::Tensor log_prob = at::_log_softmax(scores, 1, false);
  at::Tensor weight = c.in_or_undefined(2);
  if (weight.defined()) weight = weight.to(scores.scalar_type());
  const auto type = c.in(0).scalar_type();
  c.out(0, at::nll_loss_nd(log_prob, int64_labels(c.in(1)), weight, options.reduction, options.ignore_index).to(type));
  // The largest log-probability of a row is -log_sum.
  if (c.wants(2)) c.out(2, at::stack({at::amax(scores, 1), at::neg(at::amax(log_prob, 1))}));
  if (c.wants(1)) c.out(1, log_prob.to(type));
}

void aten_backward(KernelContext& c, const LossOptions& options) {
  const at::Tensor &scores = c.in(1), &stats = c.in(3);
  const auto type = scores.scalar_type();
  const bool overwrite = c.may_overwrite(1) && type == stats.scalar_type();
  const at::Tensor max = stats.select(0, 0).unsqueeze(1), log_sum = stats.select(0, 1).unsqueeze(1);
  at::Tensor d = overwrite ? scores : at::sub(scores, max);
  if (overwrite) d.sub_(max);
  d.sub_(log_sum).exp_();
  const LabelGradient g =
      label_gradient(c.in(0).to(stats.scalar_type()), int64_labels(c.in(2)), c.in_or_undefined(4), options);
  d.mul_(g.factor);
  d.scatter_(1, g.index, d.gather(1, g.index).sub_(g.factor));
  c.out(0, type == d.scalar_type() ? d : d.to(type));
}

bool float_matrix(const at::Tensor& scores, const at::Tensor& weight) {
  return scores.dim() == 2 && scores.scalar_type() == at::kFloat && scores.is_contiguous() && scores.numel() > 0 &&
         (!weight.defined() || weight.scalar_type() == at::kFloat);
}

void cpu_forward(KernelContext& c, const LossOptions& options) {
  const at::Tensor& scores = c.in(0);
  if (!float_matrix(scores, c.in_or_undefined(2))) return aten_forward(c, options);
  const int64_t rows = scores.size(0), classes = scores.size(1);
  const at::Tensor labels_tensor = int64_labels(c.in(1)).contiguous();
  const at::Tensor weight = c.has(2) ? c.in(2).contiguous() : at::Tensor();
  ORTMODULE_CHECK(labels_tensor.numel() == rows, kRuntime, "[SoftmaxCrossEntropyLoss] ", rows, " rows of scores, ",
                  labels_tensor.numel(), " labels");
  Labels::check_weights(weight, classes, "SoftmaxCrossEntropyLoss");
  const Labels labels{labels_tensor.const_data_ptr<int64_t>(),
                      weight.defined() ? weight.const_data_ptr<float>() : nullptr, classes, options.ignore_index};
  labels.check(rows, "SoftmaxCrossEntropyLoss");

  const at::Tensor stats = make_float({2, rows}), losses = make_float({rows});
  const at::Tensor log_prob = c.wants(1) ? (c.may_overwrite(0) ? scores : at::empty_like(scores)) : at::Tensor();
  const float* x = scores.const_data_ptr<float>();
  float *max = stats.mutable_data_ptr<float>(), *log_sum = max + rows, *loss = losses.mutable_data_ptr<float>();
  float* out = log_prob.defined() ? log_prob.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, row_grain(classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x + r * classes;
      max[r] = row_max(row, classes);
      log_sum[r] = static_cast<float>(std::log(row_exp_sum(row, max[r], classes)));
      loss[r] = labels.ignored(r) ? 0.0f : -(row[labels.data[r]] - max[r] - log_sum[r]) * labels.weight_of(r);
      if (out) row_log_prob(row, max[r], log_sum[r], out + r * classes, classes);
    }
  });
  if (options.reduction == LossOptions::kNone) {
    c.out(0, losses);
  } else {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += loss[r];
    if (options.reduction == LossOptions::kMean) sum /= labels.total(rows);
    at::Tensor result = make_float({});
    *result.mutable_data_ptr<float>() = static_cast<float>(sum);
    c.out(0, std::move(result));
  }
  c.out(2, stats);
  c.out(1, log_prob);
}

void cpu_backward(KernelContext& c, const LossOptions& options) {
  const at::Tensor &scores = c.in(1), &stats = c.in(3);
  if (!float_matrix(scores, c.in_or_undefined(4))) return aten_backward(c, options);
  const int64_t rows = scores.size(0), classes = scores.size(1);
  const at::Tensor labels_tensor = int64_labels(c.in(2)).contiguous(), dy = c.in(0).contiguous();
  const at::Tensor weight = c.has(4) ? c.in(4).contiguous() : at::Tensor();
  const Labels labels{labels_tensor.const_data_ptr<int64_t>(),
                      weight.defined() ? weight.const_data_ptr<float>() : nullptr, classes, options.ignore_index};
  const bool each = options.reduction == LossOptions::kNone;
  constexpr const char* kName = "SoftmaxCrossEntropyLossGrad";
  ORTMODULE_CHECK(labels_tensor.numel() == rows && dy.numel() == (each ? rows : 1) && stats.is_contiguous() &&
                      stats.numel() == 2 * rows,
                  kRuntime, "[", kName, "] ", rows, " rows of scores, ", labels_tensor.numel(),
                  " labels, a gradient of ", dy.sizes(), ", statistics of ", stats.sizes());
  Labels::check_weights(weight, classes, kName);
  labels.check(rows, kName);
  const at::Tensor d = c.may_overwrite(1) ? scores : at::empty_like(scores);
  const float *x = scores.const_data_ptr<float>(), *g = dy.const_data_ptr<float>(),
              *max = stats.const_data_ptr<float>(), *log_sum = max + rows;
  float* out = d.mutable_data_ptr<float>();
  const float scale =
      each ? 1.0f : static_cast<float>(options.reduction == LossOptions::kMean ? *g / labels.total(rows) : *g);
  at::parallel_for(0, rows, row_grain(classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = out + r * classes;
      if (labels.ignored(r)) {
        std::memset(row, 0, classes * sizeof(float));
        continue;
      }
      const float factor = (each ? g[r] : scale) * labels.weight_of(r);
      row_scaled_softmax(x + r * classes, max[r], log_sum[r], factor, row, classes);
      row[labels.data[r]] -= factor;
    }
  });
  c.out(0, d);
}

template <void (*kernel)(KernelContext&, const LossOptions&)>
Kernel make(const Node& node) {
  return [options = LossOptions(node)](KernelContext& c) { kernel(c, options); };
}

}  // namespace

ORTMODULE_KERNEL("", SoftmaxCrossEntropyLoss, "aten", make<aten_forward>);
ORTMODULE_KERNEL("", SoftmaxCrossEntropyLoss, "cpu", make<cpu_forward>).types({DType::kFloat}).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SoftmaxCrossEntropyLossGrad, "aten", make<aten_backward>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SoftmaxCrossEntropyLossGrad, "cpu", make<cpu_backward>)
    .types({DType::kFloat})
    .inplace();

}  // namespace ortmodule
