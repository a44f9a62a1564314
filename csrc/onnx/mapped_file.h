// Bytes of a file that are in memory when they are looked at.
#pragma once

#include <cstdint>

#include "graph/shared_bytes.h"

namespace ortmodule {

// `length` bytes at `offset` of an open file, which may be closed afterwards; null where the system maps nothing of it
// (errno says why). Nobody may shorten the file while somebody has them.
SharedBytes mapped_bytes(int descriptor, uint64_t offset, uint64_t length);

}  // namespace ortmodule
