// The passes, one file each; what a pass does and why stands in its file.
#pragma once

#include <memory>

#include "transforms/transformer.h"

namespace ortmodule {

std::unique_ptr<GraphTransformer> make_identity_elimination();
std::unique_ptr<GraphTransformer> make_dead_node_elimination();
std::unique_ptr<GraphTransformer> make_common_subexpression_elimination();
std::unique_ptr<GraphTransformer> make_constant_folding();
std::unique_ptr<GraphTransformer> make_decompose_attention();
std::unique_ptr<GraphTransformer> make_counter_dropout();
std::unique_ptr<GraphTransformer> make_label_compaction();
std::unique_ptr<GraphTransformer> make_padding_removal();
std::unique_ptr<GraphTransformer> make_fuse_vocabulary_loss();
std::unique_ptr<GraphTransformer> make_fuse_stack();
std::unique_ptr<GraphTransformer> make_fuse_rotate_half();
std::unique_ptr<GraphTransformer> make_accumulate_gradients();
std::unique_ptr<GraphTransformer> make_transpose_before_concat();

}  // namespace ortmodule
