// Attention in every variant of the standard, composed of ATen operators that autograd can differentiate.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// What is added to the score of a key that is hidden.
inline constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

struct AttentionForm {
  explicit AttentionForm(const Node& node);

  // Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen (undefined where absent)
  // -> Y, present_key, present_value, qk_matmul_output
  // Without softcap, windows, lengths and scores to show, PyTorch's function runs what is left.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const;

  std::string name;
  bool causal, shows_scores;
  std::optional<double> scale;
  double softcap;
  int64_t q_heads, kv_heads, qk_mode, left, right;
  std::optional<at::ScalarType> precision;
};

// [batch, seq, heads * size] as [batch, heads, seq, size], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads, const std::string& name);
// The inverse, a copy where needed.
at::Tensor merge_heads(const at::Tensor& x);
// Each key head serves `group` neighbouring query heads.
at::Tensor repeat_key_heads(const at::Tensor& kv, int64_t group);
// softmax over the last axis in `precision`, zeros for a row that is -inf throughout; nothing flows back into one.
at::Tensor safe_softmax(const at::Tensor& scores, std::optional<at::ScalarType> precision);
// A mask whose last axis is shorter than `keys` hides the keys beyond it.
at::Tensor pad_mask(const at::Tensor& mask, int64_t keys);

}  // namespace ortmodule
