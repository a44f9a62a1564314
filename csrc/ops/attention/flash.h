// Attention tile by tile on the CPU: forward and backward without the matrix of scores.
//
// After T. Dao et al., "FlashAttention", NeurIPS 2022: a tile of scores lives in cache only, its softmax is corrected
// as further keys arrive, and backward computes the tile again from the saved logarithm of each row's sum. Sums are
// fp32 whatever the type of the tensors. Inputs are read and outputs written through any strides, masks are read in
// place however they broadcast, and grouped key heads are never repeated.
//
// The dropout mask is a function of (seed, offset, element): word (j mod 64) of Philox block
// ((b * heads + h) * queries + i) * ceil(keys / 64) + j / 64 decides score (b, h, i, j).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/philox_state.h"

namespace ortmodule {

struct AttentionDropoutState {
  bool active = false;
  uint64_t seed = 0, offset = 0;
  uint32_t threshold = 0;  // words below it are dropped
  float factor = 1;        // of what is kept
};

// A ratio of 0 drops nothing.
AttentionDropoutState dropout_state(double ratio, const PhiloxStream& stream);
// The mask of the comment above as bool[batch, heads, queries, keys], true where a probability is kept.
at::Tensor flash_keep_mask(at::IntArrayRef sizes, const AttentionDropoutState& dropout);

struct FlashInputs {
  at::Tensor q, k, v;  // [batch, heads, queries, size], [batch, key heads, keys, size], [.., value size], one type
  at::Tensor mask;     // undefined, or of rank <= 4, broadcast to [batch, heads, queries, keys]; bool or floating
  bool causal = false;
  float scale = 1;
  AttentionDropoutState dropout{};
};

// Whether the tiled kernels take these tensors: float, bfloat16 or half on the CPU.
bool flash_supports(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask);

// y lies in memory as [batch, queries, heads, value size]. lse[batch, heads, queries], in fp32, is what flash_backward
// takes: the logarithm of each row's sum, without a mask divided by the scale, where that is positive; -inf where a row
// has no key to look at (its y is zero).
struct FlashResult {
  at::Tensor y, lse;
};
FlashResult flash_forward(const FlashInputs& inputs);

struct FlashWants {
  bool q, k, v, mask;
};
// Undefined where not wanted. The mask's gradient has the mask's sizes.
struct FlashGrads {
  at::Tensor q, k, v, mask;
};
FlashGrads flash_backward(const FlashInputs& inputs, const at::Tensor& dy, const at::Tensor& y, const at::Tensor& lse,
                          const FlashWants& wants);

}  // namespace ortmodule
