// ATen kernels of RotaryEmbedding.
#include "ops/attention/rotary.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include "base/status.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {

at::Tensor Rotary::operator()(const at::Tensor& x, at::Tensor cos, at::Tensor sin, const at::Tensor& positions) const {
  const bool packed = x.dim() == 3;
  ORTMODULE_CHECK((packed || x.dim() == 4) && cos.dim() >= 2 && cos.sizes() == sin.sizes(), kRuntime, name, " X ",
                  x.sizes(), ", cos_cache ", cos.sizes(), " and sin_cache ", sin.sizes(), " do not fit");
  const int64_t half = cos.size(-1), turned = 2 * half;
  // Without num_heads the caches tell the head's size.
  const int64_t count = !packed ? x.size(1) : heads > 0 ? heads : turned > 0 ? x.size(2) / turned : 0;
  ORTMODULE_CHECK(!packed || (count > 0 && x.size(2) % count == 0), kRuntime, name, " ", x.size(-1),
                  " features do not divide over ", count, " heads");
  const at::Tensor h = packed ? x.view({x.size(0), x.size(1), count, x.size(2) / count}) : x;
  const int64_t size = h.size(3), batch = x.size(0), seq = packed ? x.size(1) : x.size(2);
  ORTMODULE_CHECK(turned <= size && turned == (dim > 0 ? dim : size), kRuntime, name, " the caches turn ", turned,
                  " elements of a head, expected ", dim > 0 ? dim : size, " of ", size);
  if (positions.defined()) {
    ORTMODULE_CHECK(cos.dim() == 2 && (positions.numel() == batch * seq || positions.numel() == seq), kRuntime, name,
                    " caches ", cos.sizes(), " and position_ids ", positions.sizes(), " do not fit X ", x.sizes());
    const at::Tensor flat = positions.reshape({-1}).to(at::kLong);
    const int64_t rows = positions.numel() == batch * seq ? batch : 1;
    cos = cos.index_select(0, flat).view({rows, seq, half});
    sin = sin.index_select(0, flat).view({rows, seq, half});
  }
  ORTMODULE_CHECK(cos.dim() == 3 && (cos.size(0) == batch || cos.size(0) == 1) && cos.size(1) == seq, kRuntime, name,
                  " caches ", cos.sizes(), " do not fit X ", x.sizes());
  cos = cos.unsqueeze(packed ? 2 : 1);
  sin = sin.unsqueeze(packed ? 2 : 1);
  const auto last = [](const at::Tensor& t, int64_t from, int64_t to, int64_t step) {
    return t.slice(3, from, to, step);
  };
  const at::Tensor first = interleaved ? last(h, 0, turned, 2) : last(h, 0, half, 1);
  const at::Tensor second = interleaved ? last(h, 1, turned, 2) : last(h, half, turned, 1);
  const at::Tensor real = at::sub(at::mul(first, cos), at::mul(second, sin));
  const at::Tensor imaginary = at::add(at::mul(first, sin), at::mul(second, cos));
  at::Tensor y = interleaved ? at::stack({real, imaginary}, -1).flatten(-2) : at::cat({real, imaginary}, -1);
  if (turned < size) y = at::cat({y, last(h, turned, size, 1)}, -1);
  return packed ? y.reshape(x.sizes()) : y;
}

namespace {

Rotary options(const Node& node) {
  return {node.get_int("interleaved", 0) != 0, node.get_int("rotary_embedding_dim", 0), node.get_int("num_heads", 0),
          "[RotaryEmbedding] (" + node.describe() + ")"};
}

TensorFunction rotary(const Node& node) {
  return [rotate = options(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {rotate(in[0], in[1], in[2], in.size() > 3 ? in[3] : at::Tensor())};
  };
}

TensorFunction contrib_rotary(const Node& node) {
  ORTMODULE_CHECK(node.get_int("is_packed_batching", 0) == 0, kUnsupported,
                  "[RotaryEmbedding] packed batches are not supported (", node.describe(), ")");
  return [rotate = options(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    at::Tensor positions = in[1];
    const int64_t seq = in[0].dim() == 4 ? in[0].size(2) : in[0].size(1);
    if (positions.dim() == 1 && positions.numel() == 1) positions = at::arange(seq, positions.options()).add(positions);
    return {rotate(in[0], in[2], in[3], positions)};
  };
}

}  // namespace

ORTMODULE_KERNEL("", RotaryEmbedding, "aten", function_kernel_of<rotary>);
ORTMODULE_KERNEL("ai.ortmodule", RotaryEmbeddingGrad, "aten", rerun_kernel_of<rotary>);
ORTMODULE_KERNEL("com.microsoft", RotaryEmbedding, "aten", function_kernel_of<contrib_rotary>);
ORTMODULE_KERNEL("ai.ortmodule", ContribRotaryEmbeddingGrad, "aten", rerun_kernel_of<contrib_rotary>);

}  // namespace ortmodule
