// A session's settings as Python gives them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "session/session.h"

namespace ortmodule {

// mode: "training" or "inference". Throws kInvalidArgument for an option that is none.
SessionSettings read_options(const std::string& mode, const std::vector<std::string>& trainable,
                             const pybind11::dict& options);

}  // namespace ortmodule
