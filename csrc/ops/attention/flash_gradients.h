// Memory for the gradients of tiled attention's operands.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "ops/attention/flash.h"

namespace ortmodule {

// Like q, k and v, not initialized, undefined where not wanted; in one buffer where these are the parts of one, so that
// whoever joins the gradients again finds them joined.
std::array<at::Tensor, 3> gradients_like(const FlashInputs& in, const FlashWants& wants);

}  // namespace ortmodule
