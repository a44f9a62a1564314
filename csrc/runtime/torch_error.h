// Which of our own errors is which of PyTorch's.
#pragma once

#include <c10/util/Exception.h>

#include <optional>

#include "base/typed_error.h"
#include "ortmodule/export.h"

namespace ortmodule {

// Which of its types Python code may ask for; none: a RuntimeError.
ORTMODULE_API std::optional<TypedError::Type> type_of(const c10::Error& error);

// For code of PyTorch's that makes a Python error of what it catches: its autograd engine.
[[noreturn]] void throw_as_torch(const TypedError& error);

}  // namespace ortmodule
