// The extension module ortmodule._C.
#include "bindings/errors.h"
#include "bindings/fast_call.h"
#include "bindings/gradient.h"
#include "bindings/session.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ engine of ORTModule.";
  ortmodule::register_errors(m);
  ortmodule::register_session(m);
  ortmodule::register_fast_call(m);
  ortmodule::register_gradient_formulas(m);
}
