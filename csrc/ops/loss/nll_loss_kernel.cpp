// Kernels of NegativeLogLikelihoodLoss and its gradient, for any number of dimensions.
#include <ATen/core/Tensor.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/zeros.h>

#include "kernels/host_values.h"
#include "ops/loss/loss_support.h"
#include "records/kernel_registry.h"

namespace ortmodule {

ORTMODULE_KERNEL("", NegativeLogLikelihoodLoss, "aten", [](const Node& node) -> Kernel {
  return [options = LossOptions(node)](KernelContext& c) {
    c.out(0, at::nll_loss_nd(c.in(0), int64_labels(c.in(1)), c.in_or_undefined(2), options.reduction,
                             options.ignore_index));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", NegativeLogLikelihoodLossGrad, "aten", [](const Node& node) -> Kernel {
  return [options = LossOptions(node), sizes = HostInts(node, 3)](KernelContext& c) {
    c10::DimVector storage;
    const LabelGradient g = label_gradient(c.in(0), int64_labels(c.in(1)), c.in_or_undefined(2), options);
    c.out(0, at::zeros(sizes.read(c, storage), c.in(0).options()).scatter_(1, g.index, at::neg(g.factor)));
  };
});

}  // namespace ortmodule
