#include "bindings/calls/call_pattern.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

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
         PyUnicode_CheckExact(value) || PyType_Check(value) || THPDtype_Check(value) || THPDevice_Check(value);
}

// The classes of objects that are taken apart, with the attributes in which forwards count. They live as long as the
// process, and so does this.
std::unordered_map<PyObject*, std::unordered_set<std::string>>& classes_apart() {
  static auto* const classes = new std::unordered_map<PyObject*, std::unordered_set<std::string>>;
  return *classes;
}

// The size that a number stands for; negative for anything else.
int64_t size_in(PyObject* value) {
  if (!PyLong_CheckExact(value)) return -1;
  int overflow = 0;
  const int64_t size = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow ? -1 : size;
}

// Whether somebody has set attributes on a tensor (`x.lengths = ...`): a trace does not see them.
bool has_attributes(PyObject* tensor) {
  PyObject** const place = _PyObject_GetDictPtr(tensor);
  return place && *place && PyDict_GET_SIZE(*place) != 0;
}

// Calls `visit` with keys and values of a dict in its own order until it returns false; whether it never has.
template <typename Visit>
bool all_entries(PyObject* dict, Visit&& visit) {
  PyObject *key, *item;
  if (!PyODict_Check(dict)) {
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item);)
      if (!visit(key, item)) return false;
    return true;
  }
  const auto keys = py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(dict));  // which moved entries change
  if (!keys) throw py::error_already_set();
  while (const auto next = py::reinterpret_steal<py::object>(PyIter_Next(keys.ptr()))) {
    item = PyDict_GetItemWithError(dict, next.ptr());
    if (!item || !visit(next.ptr(), item)) return false;
  }
  return !PyErr_Occurred();
}

// What an object that is taken apart consists of. Null where it has no such.
py::object entries_of(PyObject* value) {
  if (PyODict_Check(value)) return py::reinterpret_borrow<py::object>(value);
  auto entries = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(value, nullptr));
  if (!entries) PyErr_Clear();
  return entries;
}

}  // namespace

void take_apart(const py::type& kind) {
  if (classes_apart().emplace(kind.ptr(), std::unordered_set<std::string>()).second) kind.inc_ref();
}

void count(const py::type& kind, const std::string& name) { classes_apart().at(kind.ptr()).insert(name); }

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
    learn_entries(value, dynamic, entry);
    return entry;
  }
  const py::handle kind(reinterpret_cast<PyObject*>(Py_TYPE(value)));
  if (classes_apart().contains(kind.ptr())) {
    Entry entry{Kind::kObject, {}, py::reinterpret_borrow<py::object>(kind), {}, {}, true};
    const py::object entries = entries_of(value);
    if (!entries) throw py::type_error("no native pattern for an object without attributes");
    learn_entries(entries.ptr(), dynamic, entry);
    return entry;
  }
  throw py::type_error("no native pattern for this argument");
}

CallPattern::Entry CallPattern::learn_size(PyObject* number, const std::vector<std::pair<size_t, size_t>>& dynamic) {
  TensorPattern pattern = TensorPattern::of(at::empty({size_in(number), 0}, at::kFloat));
  for (const auto& [leaf, axis] : dynamic)
    if (leaf == leaf_count_ && axis == 0) pattern.sizes[0] = -1;
  ++leaf_count_;
  return {Kind::kSize, {std::move(pattern)}, {}, {}, {}};
}

void CallPattern::learn_entries(PyObject* dict, const std::vector<std::pair<size_t, size_t>>& dynamic, Entry& entry) {
  const auto kind = classes_apart().find(entry.value.ptr());
  const bool whole = all_entries(dict, [&](PyObject* key, PyObject* item) {
    const bool counts = kind != classes_apart().end() && PyUnicode_Check(key) && size_in(item) >= 0 &&
                        kind->second.contains(py::handle(key).cast<std::string>());
    entry.keys.push_back(py::reinterpret_borrow<py::object>(key));
    entry.children.push_back(counts ? learn_size(item, dynamic) : learn(item, dynamic));
    return true;
  });
  if (!whole) throw py::type_error("no native pattern for a dict that changes when it is looked at");
}

bool CallPattern::match_entries(const Entry& entry, PyObject* dict, MatchedCall& call) {
  if (static_cast<size_t>(PyDict_Size(dict)) != entry.children.size()) return false;
  size_t i = 0;
  return all_entries(dict, [&](PyObject* key, PyObject* item) {  // in this order: a forward may go through them
    const size_t at = i++;
    return same_value(key, entry.keys[at].ptr()) && match(entry.children[at], item, call);
  });
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
    case Kind::kSize: {
      const int64_t size = size_in(value);
      if (size < 0 || (entry.tensor[0].sizes[0] >= 0 && entry.tensor[0].sizes[0] != size)) return false;
      call.leaves.push_back(at::empty({size, 0}, at::kFloat));
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
      return PyDict_CheckExact(value) && match_entries(entry, value, call);
    }
    case Kind::kObject: {
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != entry.value.ptr()) return false;
      const py::object entries = entries_of(value);
      return entries && match_entries(entry, entries.ptr(), call);
    }
  }
  return false;
}

}  // namespace ortmodule
