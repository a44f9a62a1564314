// Values that are no tensors: sequence(tensor), optional(tensor), optional(sequence(tensor)).
//
// Such a type is written as a DType: the element type of the tensors inside plus a flag per container, so that type
// rules that hand a type on, compare two types or ask is_floating() do right by them without knowing them. Their
// tensors' shapes are not part of a type: each element has its own. Not here: the values (kernels/sequence_value.h).
#pragma once

#include <string_view>

#include "base/dtype.h"

namespace ortmodule {

constexpr int32_t kSequenceFlag = 0x100;
constexpr int32_t kOptionalFlag = 0x200;

constexpr bool is_sequence(DType dtype) { return (static_cast<int32_t>(dtype) & kSequenceFlag) != 0; }
constexpr bool is_optional(DType dtype) { return (static_cast<int32_t>(dtype) & kOptionalFlag) != 0; }
constexpr bool is_container(DType dtype) { return is_sequence(dtype) || is_optional(dtype); }
constexpr DType sequence_of(DType element) { return static_cast<DType>(static_cast<int32_t>(element) | kSequenceFlag); }
constexpr DType optional_of(DType content) { return static_cast<DType>(static_cast<int32_t>(content) | kOptionalFlag); }
// What an optional holds: optional(X) -> X; any other type is itself.
constexpr DType content_of(DType dtype) { return static_cast<DType>(static_cast<int32_t>(dtype) & ~kOptionalFlag); }
// The element type of the tensors inside; of a tensor, its own.
constexpr DType element_of(DType dtype) {
  return static_cast<DType>(static_cast<int32_t>(dtype) & ~(kOptionalFlag | kSequenceFlag));
}

// One type for a value that may have either: X and optional(X) give optional(X), an unknown one gives the other.
// kUndefined when there is none.
DType join_types(DType a, DType b);

// "sequence_float", "optional_int64", "optional_sequence_float"; "undefined" for what is no container.
std::string_view container_name(DType dtype);
DType container_from_name(std::string_view name);

}  // namespace ortmodule
