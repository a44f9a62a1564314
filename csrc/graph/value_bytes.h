// What a value takes, from its type and the sizes of a call.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/graph.h"

namespace ortmodule {

// None where the rank, or a symbol of a size, is not known. A container's is not.
std::optional<int64_t> known_bytes(const TypeInfo& type, const SymbolTable& sizes);
// With a number in the place of each symbol that `sizes` lacks; 0 for an unknown rank.
double estimated_bytes(const TypeInfo& type, const SymbolTable& sizes, int64_t unknown = 64);

}  // namespace ortmodule
