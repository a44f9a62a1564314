// A Python object in the hands of the core, which knows no GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace ortmodule {

// Let go of with the GIL, whoever does it. Call with it.
inline std::shared_ptr<pybind11::object> held_object(const pybind11::object& object) {
  return {new pybind11::object(object), [](pybind11::object* held) {
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

}  // namespace ortmodule
