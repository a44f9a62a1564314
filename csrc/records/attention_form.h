// Which Attention nodes are plain: q, k, v of rank 4, perhaps a mask, and Y alone. These run in ATen's fused kernels
// and have a body in plain operators; all others run in the composed kernel (composed.h).
#pragma once

#include "graph/graph.h"

namespace ortmodule {

namespace attention_form {

// But for past and present.
inline bool is_plain(const Node& node) {
  constexpr size_t kLengths = 6, kScores = 3;
  if (node.input(kLengths) || node.output(kScores)) return false;
  const auto* q = node.input(0);
  if (q && q->type().shape ? q->type().shape->size() != 4 : node.get_int("q_num_heads", 0) != 0) return false;
  const auto precision = static_cast<DType>(node.get_int("softmax_precision", 0));
  if (precision == DType::kDouble && q && q->type().dtype != DType::kDouble) return false;
  return node.get_float("softcap", 0) == 0 && node.get_int("left_window_size", -1) < 0 &&
         node.get_int("right_window_size", -1) < 0;
}

inline bool has_past(const Node& node) {
  for (size_t past_key_past_value : {4, 5})
    if (node.input(past_key_past_value)) return true;
  return false;
}

}  // namespace attention_form

inline bool plain_attention(const Node& node) {
  for (size_t present_key_present_value : {1, 2})
    if (node.output(present_key_present_value)) return false;
  return !attention_form::has_past(node) && attention_form::is_plain(node);
}

// Plain once the keys and values of the past stand before the new ones: causality would count from the past on.
inline bool plain_but_for_past(const Node& node) {
  return node.input(4) && node.input(5) && node.get_int("is_causal", 0) == 0 && attention_form::is_plain(node);
}

}  // namespace ortmodule
