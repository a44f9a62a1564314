// THE list of passes, in the order in which they run.
#include "transforms/pass_list.h"

#include "transforms/passes.h"

namespace ortmodule {
namespace {

enum Stages { kForwardOnly = 1, kJointOnly = 2, kBothStages = 3 };

struct Item {
  std::unique_ptr<GraphTransformer> (*make)();
  PassLevel level;
  Stages stages;
};

constexpr Item kPasses[] = {
    {make_identity_elimination, PassLevel::kBasic, kBothStages},
    {make_constant_folding, PassLevel::kBasic, kBothStages},
    {make_common_subexpression_elimination, PassLevel::kBasic, kBothStages},
    {make_counter_dropout, PassLevel::kBasic, kForwardOnly},  // runs only where the user asked for it
    {make_label_compaction, PassLevel::kExtended, kForwardOnly},
    {make_padding_removal, PassLevel::kExtended, kForwardOnly},  // knows attention while it is one node
    {make_fuse_vocabulary_loss, PassLevel::kExtended, kForwardOnly},
    {make_fuse_stack, PassLevel::kBasic, kForwardOnly},
    {make_fuse_rotate_half, PassLevel::kBasic, kForwardOnly},
    {make_accumulate_gradients, PassLevel::kExtended, kJointOnly},
    {make_transpose_before_concat, PassLevel::kBasic, kJointOnly},
    {make_decompose_attention, PassLevel::kRequired, kForwardOnly},
    {make_dead_node_elimination, PassLevel::kBasic, kBothStages},
};

}  // namespace

TransformerManager make_passes(PassStage stage, TransformerManager::Options options) {
  TransformerManager manager(options);
  const int wanted = stage == PassStage::kForward ? kForwardOnly : kJointOnly;
  for (const Item& item : kPasses)
    if (item.stages & wanted) manager.add(item.make(), item.level);
  return manager;
}

}  // namespace ortmodule
