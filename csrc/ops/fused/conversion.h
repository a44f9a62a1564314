// Elements of the types that a fused program reads and stores, to and from floats.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace ortmodule {

bool converts(at::ScalarType type);
// to[i] = from[i * stride] as float; `from` points to elements of `type`.
void load_elements(at::ScalarType type, const void* from, int64_t stride, float* to, int64_t n);
// to[i] = from[i], rounded to nearest even; booleans are what is not zero.
void store_elements(at::ScalarType type, const float* from, void* to, int64_t n);

}  // namespace ortmodule
