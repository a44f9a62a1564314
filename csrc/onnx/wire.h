// Serialized ModelProtos as bytes: how much they hold, before memory is taken for it, and where they stop being one,
// for protobuf's own parser says only that they are none.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ortmodule {

struct ModelSize {
  size_t nodes = 0;                     // with those of bodies and functions
  size_t nesting = 0;                   // of bodies in bodies: 0 where no node has one
  size_t longest_name = 0;              // of operators, domains, nodes, values, attributes, tensors, sizes
  std::optional<size_t> broken_text{};  // where the first text lies that is no UTF-8
};

// Of bytes that may be no model: what is read up to the first malformed field. One walk, no allocation.
ModelSize measure(const void* data, size_t size);

struct WireFault {
  size_t offset = 0;  // of the first malformed field, from the start of the model
  std::string what;   // "a field of 4096 bytes with 17 left"
  std::string where;  // "graph.node[3].attribute[0]"; empty at the top
};

// The first malformed field; offset == size when none is found.
WireFault first_malformed_field(const void* data, size_t size);

}  // namespace ortmodule
