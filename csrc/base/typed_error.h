// Errors that Python code tells from others by their type: PyTorch raises a class of its own for each.
#pragma once

#include <string>

#include "base/status.h"

namespace ortmodule {

class TypedError : public Error {
 public:
  enum class Type {
    kIndex,           // a position outside of what it points into: a row of a table, a class label
    kNotImplemented,  // of a device, a dtype or a gradient
    kLinearAlgebra,   // a matrix that has no inverse, no decomposition
    kOutOfMemory,     // of a device
  };

  TypedError(Type type, const std::string& message) : Error(ErrorCode::kRuntime, message), type_(type) {}
  Type type() const { return type_; }

 private:
  Type type_;
};

}  // namespace ortmodule

#define ORTMODULE_CHECK_INDEX(condition, ...)                                                              \
  do {                                                                                                     \
    if (!(condition))                                                                                      \
      throw ::ortmodule::TypedError(::ortmodule::TypedError::Type::kIndex, ::ortmodule::str(__VA_ARGS__)); \
  } while (false)
