// "cuda" kernels of SoftmaxCrossEntropyLoss and its gradient (cross_entropy.cu): contiguous scores[N, C], int64 labels,
// weights of the scores' type, and no log_prob.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "kernels/cuda_kernel.h"
#include "ops/loss/cross_entropy_launch.h"
#include "ops/loss/loss_support.h"

namespace ortmodule {
namespace {

std::optional<cuda::LabelledScores> labelled(const KernelContext& c, const LossOptions& options,
                                             const at::Tensor& scores, const at::Tensor& labels,
                                             const at::Tensor& weights) {
  if (!cuda_plain(c, scores) || !cuda_element(scores) || scores.dim() != 2) return std::nullopt;
  const int64_t rows = scores.size(0), classes = scores.size(1);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
  if (rows > kMost || classes > kMost) return std::nullopt;
  if (!cuda_plain(c, labels) || labels.scalar_type() != at::kLong || labels.sizes() != scores.sizes().slice(0, 1))
    return std::nullopt;
  if (weights.defined() && (!cuda_plain(c, weights) || weights.scalar_type() != scores.scalar_type() ||
                            weights.sizes() != scores.sizes().slice(1)))
    return std::nullopt;
  return cuda::LabelledScores{*cuda_element(scores),
                              static_cast<cuda::Reduction>(options.reduction),
                              rows,
                              classes,
                              options.ignore_index,
                              address(scores),
                              address(labels),
                              address(weights)};
}

Kernel make_forward(const Node& node) {
  return cuda_kernel(node, [options = LossOptions(node)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor& scores = c.in(0);
    const auto given = labelled(c, options, scores, c.in(1), c.in_or_undefined(2));
    if (!given || c.wants(1)) return false;
    const bool none = options.reduction == LossOptions::kNone;
    at::Tensor loss = at::empty(none ? c.in(1).sizes() : c10::IntArrayRef(), scores.options());
    at::Tensor stats = at::empty({2, given->rows}, scores.options().dtype(at::kFloat));
    const at::Tensor workspace = none ? at::Tensor() : cuda_workspace(c, 2 * given->rows);
    float* largest = stats.mutable_data_ptr<float>();
    queue.run("cross_entropy", cuda::CrossEntropyLaunch{*given, mutable_address(loss), largest, largest + given->rows,
                                                        mutable_address(workspace)});
    c.out(0, std::move(loss));
    c.out(2, std::move(stats));
    return true;
  });
}

Kernel make_gradient(const Node& node) {
  return cuda_kernel(node, [options = LossOptions(node)](KernelContext& c, const CudaQueue& queue) {
    const at::Tensor &dy = c.in(0), &scores = c.in(1), &stats = c.in(3);
    const auto given = labelled(c, options, scores, c.in(2), c.in_or_undefined(4));
    const bool none = options.reduction == LossOptions::kNone;
    if (!given || !cuda_plain(c, dy) || dy.scalar_type() != scores.scalar_type() ||
        dy.numel() != (none ? given->rows : 1))
      return false;
    if (!cuda_plain(c, stats) || stats.scalar_type() != at::kFloat || stats.numel() != 2 * given->rows) return false;
    at::Tensor d_scores = c.may_overwrite(1) ? scores : at::empty_like(scores);
    const at::Tensor workspace = options.reduction == LossOptions::kMean ? cuda_workspace(c, 1) : at::Tensor();
    const float* largest = stats.const_data_ptr<float>();
    queue.run("cross_entropy_gradient",
              cuda::CrossEntropyGradLaunch{*given, address(dy), largest, largest + given->rows,
                                           mutable_address(d_scores), mutable_address(workspace)});
    c.out(0, std::move(d_scores));
    return true;
  });
}

}  // namespace

ORTMODULE_KERNEL("", SoftmaxCrossEntropyLoss, "cuda", make_forward).types(kCudaTypes);
ORTMODULE_KERNEL("ai.ortmodule", SoftmaxCrossEntropyLossGrad, "cuda", make_gradient).types(kCudaTypes).inplace();

}  // namespace ortmodule
