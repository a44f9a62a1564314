// How Python looks at a session's runs (runtime/run_observer.h): value by value, or recorded.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "session/session.h"

namespace ortmodule {

void register_observing(pybind11::module_& m, pybind11::class_<Session, std::shared_ptr<Session>>& session);

}  // namespace ortmodule
