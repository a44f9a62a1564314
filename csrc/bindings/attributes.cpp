#include "bindings/attributes.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "kernels/aten_bridge.h"

namespace py = pybind11;

namespace ortmodule {

AttributeValue attribute_from(const std::string& name, const py::handle& value) {
  if (py::isinstance<py::bool_>(value) || py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (THPVariable_Check(value.ptr())) return tensor_data_from(THPVariable_Unpack(value.ptr()));
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    bool ints = true, strings = true;
    for (const py::handle item : value) {
      ints = ints && py::isinstance<py::int_>(item);
      strings = strings && py::isinstance<py::str>(item);
    }
    if (ints) return value.cast<std::vector<int64_t>>();
    if (strings) return value.cast<std::vector<std::string>>();
    try {
      return value.cast<std::vector<double>>();
    } catch (const py::cast_error&) {  // said below
    }
  }
  fail(ErrorCode::kInvalidArgument, "the attribute '", name, "' of type ",
       py::type::of(value).attr("__name__").cast<std::string>(), " has no ONNX form");
}

py::object attribute_to(const AttributeValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, TensorData>)
          return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor_from(v)));
        else if constexpr (std::is_same_v<T, std::shared_ptr<Graph>>)
          return py::none();
        else
          return py::cast(v);
      },
      value);
}

Attributes attributes_from(const py::kwargs& values) {
  Attributes out;
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    out[name] = attribute_from(name, value);
  }
  return out;
}

py::dict attributes_to(const Attributes& attributes) {
  py::dict out;
  for (const auto& [name, value] : attributes) out[py::str(name)] = attribute_to(value);
  return out;
}

py::object shape_to(const TypeInfo& type) {
  if (!type.shape) return py::none();
  py::tuple out(type.shape->size());
  for (size_t i = 0; i < type.shape->size(); ++i) {
    const Dim& d = (*type.shape)[i];
    out[i] = d.is_known() ? py::object(py::int_(d.value())) : py::object(py::str(d.text()));
  }
  return out;
}

bool may_replace(const TypeInfo& given, const TypeInfo& wanted) {
  const bool typed = given.dtype != DType::kUndefined && wanted.dtype != DType::kUndefined;
  if (typed && given.dtype != wanted.dtype) return false;
  if (!given.shape || !wanted.shape) return true;
  if (given.shape->size() != wanted.shape->size()) return false;
  for (size_t i = 0; i < given.shape->size(); ++i) {
    const Dim &a = (*given.shape)[i], &b = (*wanted.shape)[i];
    if (a.is_known() && b.is_known() && a != b) return false;
  }
  return true;
}

}  // namespace ortmodule
