#include "bindings/calls/call_pattern.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "bindings/watching/same_value.h"

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

// Whether somebody has set attributes on a tensor (`x.lengths = ...`): a trace does not see them.
bool has_attributes(PyObject* tensor) {
  PyObject** const place = _PyObject_GetDictPtr(tensor);
  return place && *place && PyDict_GET_SIZE(*place) != 0;
}

}  // namespace

CallPattern::CallPattern(const py::handle& example, const std::vector<std::pair<size_t, size_t>>& dynamic)
    : root_(learn(example, dynamic)) {
  root_.is_object = false;  // each call makes them
}

CallPattern::Entry CallPattern::learn(const py::handle& example,
                                      const std::vector<std::pair<size_t, size_t>>& dynamic) {
  PyObject* value = example.ptr();
  if (plain_tensor(value)) {
    if (has_attributes(value)) throw py::type_error("no native pattern for a tensor with attributes of its own");
    const at::Tensor& t = THPVariable_Unpack(value);
    TensorPattern pattern = TensorPattern::of(t);
    for (const auto& [leaf, axis] : dynamic)
      if (leaf == leaf_count_ && axis < pattern.sizes.size()) pattern.sizes[axis] = -1;
    ++leaf_count_;
    auto type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(value)));
    return {Kind::kTensor, {std::move(pattern)}, std::move(type), {}, {}};
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
    entry.is_object = entry.kind == Kind::kList ||
                      std::any_of(entry.children.begin(), entry.children.end(),
                                  [](const Entry& child) { return child.kind == Kind::kTensor || child.is_object; });
    return entry;
  }
  if (PyDict_CheckExact(value)) {
    Entry entry{Kind::kDict, {}, {}, {}, {}, true};
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(example)) {
      entry.keys.push_back(py::reinterpret_borrow<py::object>(key));
      entry.children.push_back(learn(item, dynamic));
    }
    return entry;
  }
  throw py::type_error("no native pattern for this argument");
}

bool CallPattern::match(const Entry& entry, PyObject* value, MatchedCall& call) {
  if (entry.is_object) call.containers.push_back(value);
  switch (entry.kind) {
    case Kind::kTensor: {
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != entry.value.ptr() || has_attributes(value)) return false;
      const at::Tensor& t = THPVariable_Unpack(value);
      if (!entry.tensor[0].matches(t)) return false;
      call.leaves.push_back(t);
      return true;
    }
    case Kind::kValue: {
      call.leaves.emplace_back();
      return same_value(value, entry.value.ptr());
    }
    case Kind::kTuple:
    case Kind::kList: {
      const bool tuple = entry.kind == Kind::kTuple;
      if (tuple ? !PyTuple_CheckExact(value) : !PyList_CheckExact(value)) return false;
      if (static_cast<size_t>(Py_SIZE(value)) != entry.children.size()) return false;
      for (size_t i = 0; i < entry.children.size(); ++i) {
        const auto k = static_cast<Py_ssize_t>(i);
        if (!match(entry.children[i], tuple ? PyTuple_GET_ITEM(value, k) : PyList_GET_ITEM(value, k), call))
          return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (!PyDict_CheckExact(value) || static_cast<size_t>(PyDict_Size(value)) != entry.children.size()) return false;
      Py_ssize_t at = 0;
      PyObject *key, *item;
      for (size_t i = 0; PyDict_Next(value, &at, &key, &item); ++i)  // in this order: a forward may go through them
        if (!same_value(key, entry.keys[i].ptr()) || !match(entry.children[i], item, call)) return false;
      return true;
    }
  }
  return false;
}

}  // namespace ortmodule
