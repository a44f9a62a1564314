// Finds where bytes stop being a serialized ModelProto. Protobuf's own parser says only that they are none.
#pragma once

#include <cstddef>
#include <string>

namespace ortmodule {

struct WireFault {
  size_t offset = 0;  // of the first malformed field, from the start of the model
  std::string what;   // "a field of 4096 bytes with 17 left"
  std::string where;  // "graph.node[3].attribute[0]"; empty at the top
};

// The first malformed field; offset == size when none is found.
WireFault first_malformed_field(const void* data, size_t size);

}  // namespace ortmodule
