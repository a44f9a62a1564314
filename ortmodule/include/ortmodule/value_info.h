// What a graph says of one of its inputs or outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ortmodule {

struct ValueInfo {
  std::string name;
  std::string dtype;             // as ONNX writes it, "float", "int64"; "sequence_float", "optional_float" for containers
  std::vector<int64_t> shape{};  // -1: an axis of any size
  bool has_rank = true;          // false: the shape is not known at all
};

}  // namespace ortmodule
