// Type rules of operators whose outputs have the types of inputs: gradients, optimizers, dropout with a mask.
#pragma once

#include <cstddef>

#include "records/infer_context.h"

namespace ortmodule {

// Output k has the type and shape of input like[k]; nothing is said where that input is absent.
template <size_t... like>
void infer_like(InferContext& c) {
  size_t output = 0;
  ((c.has(like) ? c.same_as(output, like) : void(), ++output), ...);
}

// Output `output` is a bool for each element of input `input`.
inline void infer_mask(InferContext& c, size_t output, size_t input) {
  c.out(output, DType::kBool, c.shape(input) ? std::optional<Shape>(*c.shape(input)) : std::nullopt);
}

}  // namespace ortmodule
