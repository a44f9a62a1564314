// What the engine throws.
//
// Two kinds of failure exist: the user's (a bad model, a bad argument, something unsupported) and ours (kInternal).
// Messages follow one form: what is wrong, with both values, the node in parentheses, and what to do where that is
// known. In Python each code is a type (ortmodule/errors.py).
#pragma once

#include <stdexcept>
#include <string>

#include "ortmodule/export.h"

namespace ortmodule {

enum class ErrorCode {
  kInvalidArgument,  // a call's argument does not fit
  kInvalidGraph,     // the model breaks a rule of ONNX or of an operator
  kUnsupported,      // correct, but not something this build can do
  kParse,            // bytes or text that are no model
  kRuntime,          // an operator failed while it ran
  kTerminated,       // a run was ended from outside
  kInternal,         // a defect of ours
};

class ORTMODULE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ortmodule
