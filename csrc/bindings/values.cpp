#include "bindings/values.h"

#include <torch/csrc/autograd/python_variable.h>

#include "base/container_type.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/sequence_value.h"

namespace py = pybind11;

namespace ortmodule {

at::Tensor read_value(const py::handle& item, DType type) {
  if (THPVariable_Check(item.ptr())) return THPVariable_Unpack(item.ptr());
  if (item.is_none()) return {};
  ORTMODULE_CHECK_ARG(py::isinstance<py::list>(item) || py::isinstance<py::tuple>(item),
                      "an input should be a tensor, a list of tensors or None, got ",
                      std::string(py::str(py::type::handle_of(item))));
  std::vector<at::Tensor> elements;
  for (const py::handle element : py::reinterpret_borrow<py::sequence>(item)) {
    ORTMODULE_CHECK_ARG(THPVariable_Check(element.ptr()), "a sequence should hold tensors, got ",
                        std::string(py::str(py::type::handle_of(element))));
    elements.push_back(THPVariable_Unpack(element.ptr()));
  }
  const DType element = element_of(type);
  return make_sequence(std::move(elements), element == DType::kUndefined ? at::kFloat : to_scalar_type(element));
}

py::object write_value(const at::Tensor& value) {
  if (!value.defined()) return py::none();
  if (!holds_sequence(value)) return py::cast(value);
  py::list out;
  for (const at::Tensor& element : sequence_elements(value)) out.append(py::cast(element));
  return out;
}

py::list write_values(const std::vector<at::Tensor>& values) {
  py::list out;
  for (const at::Tensor& value : values) out.append(write_value(value));
  return out;
}

}  // namespace ortmodule
