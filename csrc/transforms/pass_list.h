// Managers filled from the one list of passes in pass_list.cpp.
#pragma once

#include "transforms/transformer.h"

namespace ortmodule {

enum class PassStage {
  kForward,  // before the gradient is built, or for inference
  kJoint,    // forward and backward together
};

TransformerManager make_passes(PassStage stage, TransformerManager::Options options);

}  // namespace ortmodule
