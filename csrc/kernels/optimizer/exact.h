// Arithmetic whose every rounding is written down.
//
// torch's kernels are compiled so that a product and a sum that stand together are one rounding. A step has the bits of
// torch's only where ours rounds at the same places: `fused` there. CMakeLists.txt keeps the compiler from joining
// others.
#pragma once

#include <cmath>

#include "kernels/cpu_simd.h"

// Behind the parameters of a lambda inside a vectorised function.
#define ORTMODULE_INLINE_LAMBDA __attribute__((always_inline))

namespace ortmodule {

// a * b + c with one rounding.
ORTMODULE_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ORTMODULE_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
ORTMODULE_INLINE float root(float x) { return __builtin_sqrtf(x); }
ORTMODULE_INLINE double root(double x) { return __builtin_sqrt(x); }

}  // namespace ortmodule
