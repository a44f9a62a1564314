#include "bindings/calls/module_tensors.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "bindings/watching/own_attributes.h"
#include "bindings/watching/watches.h"

namespace py = pybind11;

namespace ortmodule {

namespace {

py::object dict_of(PyObject* object) {
  return py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
}

}  // namespace

ModuleTensors::One::One(const py::object& table, const py::object& key, PyObject* held, TensorPattern pattern)
    : type(Py_TYPE(held)),
      dtype(pattern.dtype),
      device(pattern.device),
      requires_grad(pattern.requires_grad),
      dimensions(pattern.sizes.size() <= sizes.size() ? static_cast<uint8_t>(pattern.sizes.size()) : kMany),
      bare(has_no_attributes(held)),
      rest(std::make_unique<Rest>(
          Rest{table, key, {}, bare ? py::object() : dict_of(held), Py_TYPE(held), std::move(pattern)})) {
  if (dimensions != kMany) std::copy(rest->pattern.sizes.begin(), rest->pattern.sizes.end(), sizes.begin());
}

// A class of tensors may have operations of its own; a plain tensor may stand in for a parameter.
bool ModuleTensors::One::find() {
  rest->found = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(rest->table.ptr(), rest->key.ptr()));
  found = rest->found.ptr();
  if (!found) return false;
  bare = has_no_attributes(found);
  if (!bare && !dict_of(found).is(rest->attributes)) return false;
  type = Py_TYPE(found);
  return type == rest->type || (THPVariable_CheckTypeExact(type) && THPVariable_CheckTypeExact(rest->type));
}

ModuleTensors::~ModuleTensors() { unwatch_all(); }

size_t ModuleTensors::add(const py::object& table, const py::object& key) {
  const py::object held = table[key];
  tensors_.emplace_back(table, key, held.ptr(), TensorPattern::of(THPVariable_Unpack(held.ptr())));
  const auto is_table = [&](const Table& known) { return known.dict == table.ptr(); };
  if (std::none_of(tables_.rbegin(), tables_.rend(), is_table)) tables_.push_back({table.ptr(), kNoVersion});
  return tensors_.size() - 1;
}

void ModuleTensors::settle() {
  for (const Table& table : tables_) watched_ = watch_dict(table.dict, *this, 0) && watched_;
  for (One& one : tensors_) one.find();
  first_places_ = first_places();
}

// Of each tensor, where it is met first.
std::vector<size_t> ModuleTensors::first_places() const {
  const size_t count = tensors_.size() + others_.size();
  std::unordered_map<const PyObject*, size_t> first(count);
  std::vector<size_t> places;
  places.reserve(count);
  const auto meet = [&](const PyObject* tensor) {
    places.push_back(first.emplace(tensor, places.size()).first->second);
  };
  for (const One& one : tensors_) meet(one.found);
  for (const PyObject* other : others_) meet(other);
  return places;
}

bool ModuleTensors::are_as_found() const {
  if (watched_) return found_ == changes_;
  return std::all_of(tables_.begin(), tables_.end(), [](const Table& table) {
    return table.version != kNoVersion && table.version == version_of(table.dict);
  });
}

bool ModuleTensors::find() {
  if (!are_as_found() && !find_all()) return false;
  return !cleared_ && have_no_attributes(bare_.data(), bare_.size());
}

std::unordered_set<PyObject*> ModuleTensors::bare() const {
  std::unordered_set<PyObject*> found;
  for (const One& one : tensors_)
    if (one.bare) found.insert(PyDict_GetItemWithError(one.rest->table.ptr(), one.rest->key.ptr()));
  return found;
}

bool ModuleTensors::find_all() {
  const uint64_t changes = changes_;
  std::vector<Table> tables = tables_;
  for (Table& table : tables) table.version = version_of(table.dict);
  bare_.clear();
  for (One& one : tensors_) {
    const PyObject* const before = one.found;
    if (!one.find()) {
      PyErr_Clear();
      return false;
    }
    moved_ = moved_ || one.found != before;
    if (one.bare) bare_.push_back(one.found);
  }
  if (moved_ && first_places() != first_places_) return false;
  moved_ = false;
  found_ = changes;
  tables_ = std::move(tables);
  return true;
}

void ModuleTensors::unwatch_all() {
  for (const Table& table : tables_) unwatch(table.dict, *this);
}

int ModuleTensors::traverse(visitproc visit, void* arg) const {
  for (const One& one : tensors_) {
    Py_VISIT(one.rest->table.ptr());
    Py_VISIT(one.rest->found.ptr());
    Py_VISIT(one.rest->attributes.ptr());
  }
  return 0;
}

void ModuleTensors::clear() {
  if (std::exchange(cleared_, true)) return;
  unwatch_all();
  tables_.clear();
  bare_.clear();
  const std::vector<One> gone = std::exchange(tensors_, {});
}

}  // namespace ortmodule
