// The types that are computed in float; on the CPU their elements to and from floats, vectorised.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace ortmodule {

// Half precision and integers are computed in float and rounded once.
inline at::ScalarType computed_in(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

// float, bfloat16, half and bool.
bool converts(at::ScalarType type);
// to[i] = from[i * stride] as float; `from` points to elements of `type`.
void load_elements(at::ScalarType type, const void* from, int64_t stride, float* to, int64_t n);
// to[i] = from[i], rounded to nearest even; booleans are what is not zero.
void store_elements(at::ScalarType type, const float* from, void* to, int64_t n);

}  // namespace ortmodule
