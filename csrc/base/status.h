// How the core raises its errors (ortmodule/error.h says which there are).
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "ortmodule/error.h"

namespace ortmodule {

// Joins its arguments with operator<<: str("expected ", 3, ", got ", 4).
template <typename... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const Args&... args) {
  throw Error(code, ::ortmodule::str(args...));  // qualified: c10 has a str() of its own
}

}  // namespace ortmodule

// Checks build their message only on failure.
#define ORTMODULE_CHECK(condition, code, ...)                                       \
  do {                                                                              \
    if (!(condition)) ::ortmodule::fail(::ortmodule::ErrorCode::code, __VA_ARGS__); \
  } while (false)

#define ORTMODULE_CHECK_ARG(condition, ...) ORTMODULE_CHECK(condition, kInvalidArgument, __VA_ARGS__)
#define ORTMODULE_CHECK_GRAPH(condition, ...) ORTMODULE_CHECK(condition, kInvalidGraph, __VA_ARGS__)

// A broken promise of our own; the text asks for a report.
#define ORTMODULE_INTERNAL(condition, ...)                                                                       \
  do {                                                                                                           \
    if (!(condition))                                                                                            \
      ::ortmodule::fail(::ortmodule::ErrorCode::kInternal, "INTERNAL (please report this): ", __VA_ARGS__, " [", \
                        __FILE__, ":", __LINE__, "]");                                                           \
  } while (false)
