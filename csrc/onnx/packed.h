// Elements of less than a byte: files hold them as one stream of bits, the first element in the lowest bits of the
// first byte; memory holds one per byte (base/dtype.h).
#pragma once

#include <string>
#include <string_view>

#include "base/dtype.h"

namespace ortmodule {

bool is_packed(DType dtype);
// Bytes of `elements` elements in a file; false when the number overflows.
bool packed_size(DType dtype, uint64_t elements, uint64_t& bytes);
// A byte per element: signed types sign-extended, bits after the last element ignored. `packed` has packed_size bytes.
std::string unpack_elements(std::string_view packed, DType dtype, size_t elements);
std::string pack_elements(std::string_view bytes, DType dtype);

}  // namespace ortmodule
