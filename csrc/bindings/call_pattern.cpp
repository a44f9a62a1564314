#include "bindings/call_pattern.h"

#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace ortmodule {
namespace {

// A tensor or a Parameter, not a subclass with a behaviour of its own.
bool plain_tensor(PyObject* value) {
  return THPVariable_CheckExact(value) || reinterpret_cast<PyObject*>(Py_TYPE(value)) == ParameterClass;
}

bool plain_value(PyObject* value) {
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyUnicode_CheckExact(value);
}

}  // namespace

CallPattern::CallPattern(const py::handle& example, const std::vector<std::pair<size_t, size_t>>& dynamic)
    : root_(learn(example, dynamic)) {}

CallPattern::Entry CallPattern::learn(const py::handle& example,
                                      const std::vector<std::pair<size_t, size_t>>& dynamic) {
  PyObject* value = example.ptr();
  if (plain_tensor(value)) {
    const at::Tensor& t = THPVariable_Unpack(value);
    TensorPattern pattern = TensorPattern::of(t);
    for (const auto& [leaf, axis] : dynamic)
      if (leaf == leaf_count_ && axis < pattern.sizes.size()) pattern.sizes[axis] = -1;
    ++leaf_count_;
    return {Kind::kTensor, {std::move(pattern)}, {}, {}, {}};
  }
  if (plain_value(value)) {
    // pytree counts None as a leaf as well.
    ++leaf_count_;
    return {Kind::kValue, {}, py::reinterpret_borrow<py::object>(example), {}, {}};
  }
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    Entry entry{PyTuple_CheckExact(value) ? Kind::kTuple : Kind::kList, {}, {}, {}, {}};
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(example))
      entry.children.push_back(learn(item, dynamic));
    return entry;
  }
  if (PyDict_CheckExact(value)) {
    Entry entry{Kind::kDict, {}, {}, {}, {}};
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(example)) {
      entry.keys.push_back(py::reinterpret_borrow<py::object>(key));
      entry.children.push_back(learn(item, dynamic));
    }
    return entry;
  }
  throw py::type_error("no native pattern for this argument");
}

bool CallPattern::match(const Entry& entry, PyObject* value, std::vector<at::Tensor>& leaves) {
  switch (entry.kind) {
    case Kind::kTensor: {
      if (!plain_tensor(value)) return false;
      const at::Tensor& t = THPVariable_Unpack(value);
      if (!entry.tensor[0].matches(t)) return false;
      leaves.push_back(t);
      return true;
    }
    case Kind::kValue: {
      leaves.emplace_back();
      PyObject* expected = entry.value.ptr();
      if (value == expected) return true;
      if (Py_TYPE(value) != Py_TYPE(expected)) return false;
      const int equal = PyObject_RichCompareBool(value, expected, Py_EQ);
      if (equal < 0) PyErr_Clear();
      return equal == 1;
    }
    case Kind::kTuple:
    case Kind::kList: {
      const bool tuple = entry.kind == Kind::kTuple;
      if (tuple ? !PyTuple_CheckExact(value) : !PyList_CheckExact(value)) return false;
      if (static_cast<size_t>(Py_SIZE(value)) != entry.children.size()) return false;
      for (size_t i = 0; i < entry.children.size(); ++i) {
        const auto k = static_cast<Py_ssize_t>(i);
        if (!match(entry.children[i], tuple ? PyTuple_GET_ITEM(value, k) : PyList_GET_ITEM(value, k), leaves))
          return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (!PyDict_CheckExact(value) || static_cast<size_t>(PyDict_Size(value)) != entry.children.size()) return false;
      for (size_t i = 0; i < entry.children.size(); ++i) {
        PyObject* item = PyDict_GetItemWithError(value, entry.keys[i].ptr());
        if (!item) {
          PyErr_Clear();
          return false;
        }
        if (!match(entry.children[i], item, leaves)) return false;
      }
      return true;
    }
  }
  return false;
}

}  // namespace ortmodule
