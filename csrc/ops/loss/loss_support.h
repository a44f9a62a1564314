// What the loss kernels share: reduction and ignored labels, as torch means them.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "graph/graph.h"
#include "kernels/kernel_context.h"

namespace ortmodule {

struct LossOptions {
  enum Reduction { kNone, kMean, kSum } reduction;  // numbered as at::Reduction
  // A label that no class can have where the node ignores none.
  int64_t ignore_index;

  explicit LossOptions(const Node& node)
      : reduction(node.get_string("reduction", "mean") == "mean"  ? kMean
                  : node.get_string("reduction", "mean") == "sum" ? kSum
                                                                  : kNone),
        ignore_index(node.get_int("ignore_index", std::numeric_limits<int64_t>::min())) {}
};

at::Tensor int64_labels(const at::Tensor& labels);

// Per label, what d(loss)/d(-log_prob[label]) is: dy times weight, over the total weight for the mean, and exactly zero
// for an ignored label even when all are ignored. Both results have the labels' shape with a dimension of 1 for the
// classes: the factor, and labels that are valid as indices.
struct LabelGradient {
  at::Tensor factor, index;
};
LabelGradient label_gradient(const at::Tensor& dy, const at::Tensor& labels, const at::Tensor& weight,
                             const LossOptions& options);

}  // namespace ortmodule
