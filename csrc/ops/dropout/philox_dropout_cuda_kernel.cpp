// "cuda" kernel of PhiloxDropout (philox_dropout.cu): contiguous tensors without rows; a ratio of 0 or 1 is ATen's.
#include <ATen/ops/empty_like.h>

#include "kernels/cuda_kernel.h"
#include "kernels/philox_state.h"
#include "ops/dropout/philox_dropout_launch.h"

namespace ortmodule {

ORTMODULE_KERNEL("ai.ortmodule", PhiloxDropout, "cuda",
                 [](const Node& node) -> Kernel {
                   return cuda_kernel(
                       node, [number = node.get_int("stream", 0)](KernelContext& c, const CudaQueue& queue) {
                         const at::Tensor& x = c.in(0);
                         const double ratio = c.double_value(1);
                         if (c.has(3) || !cuda_plain(c, x) || !cuda_element(x) || !(ratio > 0 && ratio < 1))
                           return false;
                         const auto words = philox_state_words(c.in(2));
                         const PhiloxStream drawn = philox_stream(words.data(), number);
                         at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x);
                         queue.run("philox_dropout",
                                   cuda::PhiloxDropoutLaunch{*cuda_element(x), philox_threshold(ratio),
                                                             static_cast<float>(1.0 / (1.0 - ratio)), drawn.seed,
                                                             drawn.offset, x.numel(), address(x), mutable_address(y)});
                         c.out(0, std::move(y));
                         return true;
                       });
                 })
    .types({DType::kFloat, DType::kFloat16, DType::kBFloat16})
    .inplace();

}  // namespace ortmodule
