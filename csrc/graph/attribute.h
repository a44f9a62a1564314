// What a node carries besides its edges, and small constant tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "graph/shared_bytes.h"
#include "ortmodule/export.h"

namespace ortmodule {

class Graph;

// A constant tensor: little-endian, row-major bytes, as ONNX raw_data holds them. Bytes are shared, never changed.
struct TensorData {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  SharedBytes bytes;

  int64_t elements() const;
  // Numbers as int64 or double, whatever the stored type; throw for string, complex and float8 tensors.
  ORTMODULE_API std::vector<int64_t> to_ints() const;
  ORTMODULE_API std::vector<double> to_doubles() const;

  ORTMODULE_API static TensorData of_ints(const std::vector<int64_t>& values);  // int64[n]
  ORTMODULE_API static TensorData scalar_int(int64_t value);                    // int64, 0-d
  // 0-d of any numeric dtype; the value is rounded once to that type.
  ORTMODULE_API static TensorData scalar(DType dtype, double value);
};

// ONNX float attributes are float32 on disk; in memory they are doubles, as torch's are.
using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                    std::vector<std::string>, TensorData, std::shared_ptr<Graph>>;
using Attributes = std::map<std::string, AttributeValue>;

// "int", "float", "string", "ints", "floats", "strings", "tensor" or "graph".
const char* attribute_kind(const AttributeValue& value);

}  // namespace ortmodule
