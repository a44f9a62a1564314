// Which Attention nodes are plain: q, k, v of rank 4, perhaps a mask, and Y alone. These run in ATen's fused kernels
// and have a body in plain operators; all others run in the composed kernel (composed.h).
#pragma once

#include "graph/graph.h"

namespace ortmodule {

inline bool plain_attention(const Node& node) {
  for (size_t past_key_past_value_lengths : {4, 5, 6})
    if (node.input(past_key_past_value_lengths)) return false;
  for (size_t present_key_present_value_scores : {1, 2, 3})
    if (node.output(present_key_present_value_scores)) return false;
  const auto* q = node.input(0);
  if (q && q->type().shape ? q->type().shape->size() != 4 : node.get_int("q_num_heads", 0) != 0) return false;
  const auto precision = static_cast<DType>(node.get_int("softmax_precision", 0));
  if (precision == DType::kDouble && q && q->type().dtype != DType::kDouble) return false;
  return node.get_float("softcap", 0) == 0 && node.get_int("left_window_size", -1) < 0 &&
         node.get_int("right_window_size", -1) < 0;
}

}  // namespace ortmodule
