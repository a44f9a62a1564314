#include "bindings/optim/python_optim.h"

#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/optimizer/eight_bit.h"
#include "kernels/optimizer/gradient_norm.h"
#include "kernels/optimizer/update.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

constexpr Py_ssize_t kLongest = 4 + 2 * kMostStates;

// (parameter, gradient, step, copy, states..., scales...), each a tensor or None, the end left out where it is None.
Updated updated_of(PyObject* given) {
  ORTMODULE_CHECK_ARG(PyTuple_Check(given) && PyTuple_GET_SIZE(given) <= kLongest,
                      "a parameter of a step should be a tuple of at most ", kLongest, " tensors");
  Updated out;
  std::array<at::Tensor*, kLongest> places{&out.parameter, &out.gradient, &out.step, &out.copy};
  for (size_t i = 0; i < kMostStates; ++i) {
    places[4 + i] = &out.states[i];
    places[4 + kMostStates + i] = &out.scales[i];
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(given, i);
    if (item == Py_None) continue;
    ORTMODULE_CHECK_ARG(THPVariable_Check(item), "item ", i, " of a parameter's tuple is neither a tensor nor None");
    *places[static_cast<size_t>(i)] = THPVariable_Unpack(item);
  }
  return out;
}

using Group = std::pair<std::map<std::string, double, std::less<>>, py::list>;

// A float on a device, or None.
at::Tensor number_on_device(const py::object& given) {
  if (given.is_none()) return {};
  ORTMODULE_CHECK_ARG(THPVariable_Check(given.ptr()), "a number on a device should be a tensor");
  at::Tensor number = THPVariable_Unpack(given.ptr());
  ORTMODULE_CHECK_ARG(number.numel() == 1 && !number.is_cpu(), "a number on a device should be one element of it");
  return number;
}

void update_all(const std::string& rule, const std::vector<Group>& groups, double divisor, bool written,
                const py::object& divisor_on_device, const py::object& found_inf) {
  std::vector<UpdateGroup> given;
  for (const auto& [settings, parameters] : groups) {
    UpdateGroup group{settings, {}};
    for (const py::handle& parameter : parameters) group.parameters.push_back(updated_of(parameter.ptr()));
    given.push_back(std::move(group));
  }
  const GradientScale scale{divisor, written, number_on_device(divisor_on_device), number_on_device(found_inf)};
  const py::gil_scoped_release release;
  update_parameters(rule, given, scale);
}

}  // namespace

void register_optim(py::module_& m) {
  m.def("update_parameters", &update_all, py::arg("rule"), py::arg("groups"), py::arg("divisor"), py::arg("written"),
        py::arg("divisor_on_device") = py::none(), py::arg("found_inf") = py::none(),
        "One step of an optimizer's rule over all parameters.");
  m.def("updates_on", &updates_on, py::arg("device_type"), "Whether update_parameters takes tensors on such devices.");
  m.def("device_norm", &device_norm, py::arg("gradients"), py::arg("order"), py::arg("max_norm") = py::none(),
        py::call_guard<py::gil_scoped_release>(),
        "The norm over all gradients of a device, to which they are clipped.");
  m.def("gradient_norm", &gradient_norm, py::arg("gradients"), py::arg("order"),
        py::call_guard<py::gil_scoped_release>(), "The norm over all gradients.");
  m.def("scale_gradients", &scale_gradients, py::arg("gradients"), py::arg("factor"),
        py::call_guard<py::gil_scoped_release>(), "Multiplies gradients in place.");
  m.def("encode_state", &encoded_state, py::arg("values"), py::arg("is_signed"),
        py::call_guard<py::gil_scoped_release>(), "Codes in 8 bits and their scales.");
  m.def("decode_state", &decoded_state, py::arg("codes"), py::arg("scales"), py::arg("is_signed"),
        py::call_guard<py::gil_scoped_release>(), "What codes in 8 bits stand for, as floats.");
}

}  // namespace ortmodule
