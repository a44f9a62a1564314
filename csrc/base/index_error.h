// The error of a position outside of what it points into: a row of a table, a class label. Python's is an IndexError.
#pragma once

#include "base/status.h"

namespace ortmodule {

class IndexError : public Error {
 public:
  explicit IndexError(const std::string& message) : Error(ErrorCode::kRuntime, message) {}
};

}  // namespace ortmodule

#define ORTMODULE_CHECK_INDEX(condition, ...)                                       \
  do {                                                                              \
    if (!(condition)) throw ::ortmodule::IndexError(::ortmodule::str(__VA_ARGS__)); \
  } while (false)
