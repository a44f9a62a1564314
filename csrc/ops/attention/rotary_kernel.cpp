// Kernels of RotaryEmbedding: "cpu" turns heads of floats whose halves are pairs in one pass over memory, "aten" does
// everything else.
#include "ops/attention/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/cpu_simd.h"
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

// (y1, y2) = (x1 cos - x2 sin, x2 cos + x1 sin) of the halves of a head; y may be x.
ORTMODULE_SIMD void turn(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    y[i] = a * cos[i] - b * sin[i];
    y[i + half] = b * cos[i] + a * sin[i];
  }
}

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided && !t.is_neg();
}

// x[batch, heads, seq, size] of any order of the first three axes; false where it, or a cache, is something else.
bool turn_heads(KernelContext& c) {
  const at::Tensor &x = c.in(0), &cos = c.in(1), &sin = c.in(2);
  if (!is_plain(x) || !is_plain(cos) || !is_plain(sin) || x.dim() != 4 || x.numel() == 0 || x.stride(3) != 1 ||
      !x.is_non_overlapping_and_dense())
    return false;
  const int64_t batch = x.size(0), heads = x.size(1), seq = x.size(2), half = x.size(3) / 2;
  if (cos.dim() != 3 || cos.sizes() != sin.sizes() || !cos.is_contiguous() || !sin.is_contiguous() ||
      cos.size(1) != seq || cos.size(2) != half || 2 * half != x.size(3) || (cos.size(0) != batch && cos.size(0) != 1))
    return false;
  at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x);  // of the same strides
  const int64_t by_batch = x.stride(0), by_head = x.stride(1), by_token = x.stride(2),
                cache_by_batch = cos.size(0) == 1 ? 0 : seq * half;
  const float *from = x.const_data_ptr<float>(), *cosines = cos.const_data_ptr<float>(),
              *sines = sin.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  constexpr int64_t kGrain = 1 << 13;
  at::parallel_for(0, batch * seq, std::max<int64_t>(1, kGrain / (heads * 2 * half)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / seq, s = i % seq, at = b * by_batch + s * by_token, row = b * cache_by_batch + s * half;
      for (int64_t h = 0; h < heads; ++h)
        turn(from + at + h * by_head, cosines + row, sines + row, to + at + h * by_head, half);
    }
  });
  c.out(0, std::move(y));
  return true;
}

// With caches per token and the whole head.
Kernel make_rotary(const Node& node) {
  Kernel general = function_kernel(rotary(node));
  const bool plain =
      !node.input(3) && node.get_int("interleaved", 0) == 0 && node.get_int("rotary_embedding_dim", 0) == 0;
  return [general = std::move(general), plain](KernelContext& c) {
    if (!plain || !turn_heads(c)) general(c);
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
ORTMODULE_KERNEL("", RotaryEmbedding, "cpu", make_rotary).inplace();
ORTMODULE_KERNEL("ai.ortmodule", RotaryEmbeddingGrad, "aten", rerun_kernel_of<rotary>);
ORTMODULE_KERNEL("com.microsoft", RotaryEmbedding, "aten", function_kernel_of<contrib_rotary>);
ORTMODULE_KERNEL("ai.ortmodule", ContribRotaryEmbeddingGrad, "aten", rerun_kernel_of<contrib_rotary>);

}  // namespace ortmodule
