// The trait of operators that take or give sequences and optionals. It is not in registry.h because nothing but these
// operators and resolve() needs it.
#pragma once

#include <cstdint>

namespace ortmodule {

// resolve() refuses a sequence or an optional as input of an operator without it.
constexpr uint32_t kTakesContainers = 1u << 16;

}  // namespace ortmodule
