// "cuda" kernel of RotaryEmbedding (rotary.cu): whole heads whose halves are pairs, with caches per token of x's type;
// tokens and heads in any order in memory.
#include <ATen/ops/empty_like.h>

#include "kernels/cuda_kernel.h"
#include "ops/attention/rotary_launch.h"

namespace ortmodule {
namespace {

bool is_turned(const KernelContext& c, const at::Tensor& x) {
  return x.defined() && x.device() == c.device() && x.layout() == at::kStrided && x.numel() > 0 && !x.is_neg() &&
         (x.dim() == 3 || x.dim() == 4) && x.is_non_overlapping_and_dense() && x.stride(-1) == 1;
}

bool turn(KernelContext& c, const CudaQueue& queue, int64_t declared_heads) {
  const at::Tensor &x = c.in(0), &cos = c.in(1), &sin = c.in(2);
  if (!is_turned(c, x) || !cuda_element(x) || !cuda_plain(c, cos) || !cuda_plain(c, sin)) return false;
  if (cos.dim() != 3 || cos.sizes() != sin.sizes() || cos.scalar_type() != x.scalar_type() ||
      sin.scalar_type() != x.scalar_type())
    return false;
  const bool packed = x.dim() == 3;
  const int64_t half = cos.size(2), size = 2 * half, seq = x.size(packed ? 1 : 2);
  const int64_t heads = packed ? x.size(2) / size : x.size(1);
  if ((packed ? heads * size != x.size(2) || (declared_heads > 0 && declared_heads != heads) : x.size(3) != size) ||
      cos.size(1) != seq || (cos.size(0) != x.size(0) && cos.size(0) != 1))
    return false;
  const int64_t by_token = x.stride(packed ? 1 : 2), by_head = packed ? size : x.stride(1);
  const int64_t by_batch = cos.size(0) == 1 ? 0 : seq * half;
  at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x);  // of the same strides
  const bool tokens_inside = by_token < by_head;
  cuda::RotaryLaunch given{*cuda_element(x),  x.size(0), seq,  heads, half,       x.stride(0),  by_token,
                           by_head,           by_batch,  half, 0,     address(x), address(cos), address(sin),
                           mutable_address(y)};
  if (tokens_inside) {
    std::swap(given.outer, given.inner);
    std::swap(given.by_outer, given.by_inner);
    std::swap(given.cache_by_outer, given.cache_by_inner);
  }
  queue.run("rotary", given);
  c.out(0, std::move(y));
  return true;
}

}  // namespace

ORTMODULE_KERNEL("", RotaryEmbedding, "cuda",
                 [](const Node& node) -> Kernel {
                   const bool plain = !node.input(3) && node.get_int("interleaved", 0) == 0 &&
                                      node.get_int("rotary_embedding_dim", 0) == 0;
                   return cuda_kernel(
                       node, [plain, heads = node.get_int("num_heads", 0)](KernelContext& c, const CudaQueue& queue) {
                         return plain && turn(c, queue, heads);
                       });
                 })
    .types({DType::kFloat, DType::kFloat16, DType::kBFloat16})
    .inplace();

}  // namespace ortmodule
