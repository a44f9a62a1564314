// Errors of the core.
//
// Two kinds of failure exist: the user's (a bad model, a bad argument, something unsupported) and ours (Internal).
// Each is thrown as `Error` with a code; bindings/ turns the code into the matching Python type. Messages follow
// one form: what is wrong, with both values, the node in parentheses, and what to do where that is known.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/export.h"

namespace ortmodule {

enum class ErrorCode {
  kInvalidArgument,  // a call's argument does not fit
  kInvalidGraph,     // the model breaks a rule of ONNX or of an operator
  kUnsupported,      // correct, but not something this build can do
  kParse,            // bytes or text that are no model
  kRuntime,          // an operator failed while it ran
  kInternal,         // a defect of ours
};

class ORTMODULE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

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
