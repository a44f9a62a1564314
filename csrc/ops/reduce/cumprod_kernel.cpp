// ATen kernels of CumProd and its gradient, which must be right around zeros: autograd's is.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/ones_like.h>

#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

TensorFunction cumprod(const Node& node) {
  return [exclusive = node.get_int("exclusive", 0) != 0,
          reverse = node.get_int("reverse", 0) != 0](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const int64_t along = positive_axis(int_of(in[1], 0), in[0].dim(), "CumProd");
    at::Tensor x = reverse ? in[0].flip(along) : in[0];
    if (exclusive && x.size(along) > 0)
      x = at::cat({at::ones_like(x.narrow(along, 0, 1)), x.narrow(along, 0, x.size(along) - 1)}, along);
    const at::Tensor y = at::cumprod(x, along, in[0].scalar_type());
    return {reverse ? y.flip(along) : y};
  };
}

ORTMODULE_KERNEL("", CumProd, "aten", function_kernel_of<cumprod>);
ORTMODULE_KERNEL("ai.ortmodule", CumProdGrad, "aten", rerun_kernel_of<cumprod>);

}  // namespace
}  // namespace ortmodule
