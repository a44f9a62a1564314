// What the bodies of attention operators share: sizes, heads, scaled products. All work with symbolic sizes.
#pragma once

#include "records/grad_context.h"

namespace ortmodule::attention {

// [dim `axis` of value] as int64[1], a constant where it is known.
NodeArg* length(BodyContext& c, NodeArg* value, int64_t axis);
// kv[B, Hk, S, E] as [B, H, S, E] with q's heads: each key head serves a group of neighbouring query heads.
NodeArg* repeat_heads(BodyContext& c, NodeArg* kv, NodeArg* q);
// sqrt(|scale|), which multiplies q and k alike; by default scale is 1 / sqrt(head size).
NodeArg* root_of_scale(BodyContext& c, NodeArg* q);
// scale * q k^T, `root` being root_of_scale.
NodeArg* scaled_scores(BodyContext& c, NodeArg* q, NodeArg* k, NodeArg* root);
// Nothing emitted when the value has that type already.
NodeArg* cast(BodyContext& c, NodeArg* value, DType dtype);

}  // namespace ortmodule::attention
