// `_C.Session`: what Python gives a session and gets of it (session/session.h), converted.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ortmodule {

void register_session(pybind11::module_& m);

}  // namespace ortmodule
