#include "bindings/watching/watches.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string>

#include "bindings/calls/call_pattern.h"
#include "bindings/watching/own_attributes.h"
#include "bindings/watching/same_value.h"

namespace py = pybind11;

namespace ortmodule {

#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
uint64_t version_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
#pragma GCC diagnostic pop
#else
uint64_t version_of(PyObject*) { return kNoVersion; }
#endif

uint64_t class_version(const py::type& type) {
  auto* const found = reinterpret_cast<PyTypeObject*>(type.ptr());
#if PY_VERSION_HEX >= 0x030C0000
  return PyUnstable_Type_AssignVersionTag(found) ? found->tp_version_tag : kNoVersion;
#else
  _PyType_Lookup(found, py::str("__init__").ptr());  // a look gives it a number
  return PyType_HasFeature(found, Py_TPFLAGS_VALID_VERSION_TAG) ? found->tp_version_tag : kNoVersion;
#endif
}

namespace {

// What the watchers call what has changed, besides numbers of dicts.
constexpr size_t kFunctions = ~size_t{0};

bool same_items(PyObject* list, PyObject* items) {
  const Py_ssize_t size = PyTuple_GET_SIZE(items);
  if (PyList_GET_SIZE(list) != size) return false;
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!same_value(PyList_GET_ITEM(list, i), PyTuple_GET_ITEM(items, i))) return false;
  return true;
}

bool same_names(PyObject* table, PyObject* names, Py_ssize_t count) {
  Py_ssize_t at = 0, found = 0;
  PyObject *key, *value;
  while (PyDict_Next(table, &at, &key, &value)) found += PySet_Contains(names, key) == 1;
  return found == count;
}

bool same_entries(PyObject* table, PyObject* keys, PyObject* values) {
  const Py_ssize_t size = PyTuple_GET_SIZE(keys);
  if (PyDict_GET_SIZE(table) != size) return false;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  for (Py_ssize_t i = 0; PyDict_Next(table, &at, &key, &value); ++i) {
    if (i >= size || !same_value(key, PyTuple_GET_ITEM(keys, i))) return false;
    if (!same_value(value, PyTuple_GET_ITEM(values, i))) return false;
  }
  return true;
}

bool same_keys(PyObject* table, PyObject* keys) {
  const Py_ssize_t size = PyTuple_GET_SIZE(keys);
  if (PyDict_GET_SIZE(table) != size) return false;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  for (Py_ssize_t i = 0; PyDict_Next(table, &at, &key, &value); ++i)
    if (i >= size || !same_value(key, PyTuple_GET_ITEM(keys, i))) return false;
  return true;
}

}  // namespace

// A tensor that is a constant of the graph: what it holds may change, not its form.
struct Watches::Tensor {
  py::object object;
  TensorPattern pattern;
  c10::DimVector strides;
  int64_t offset;

  explicit Tensor(const py::object& held)
      : object(held),
        pattern(TensorPattern::of(THPVariable_Unpack(held.ptr()))),
        strides(THPVariable_Unpack(held.ptr()).strides()),
        offset(THPVariable_Unpack(held.ptr()).storage_offset()) {}

  bool holds() const {
    const at::Tensor& now = THPVariable_Unpack(object.ptr());
    return pattern.matches(now) && now.strides() == c10::IntArrayRef(strides) && now.storage_offset() == offset;
  }
};

// --- what is watched
// --------------------------------------------------------------------------------------------------

Watches::~Watches() { unwatch_all(); }

Watches::Dict& Watches::of(const py::handle& dict) {
  if (!PyDict_Check(dict.ptr())) throw py::type_error("only dicts can be watched");
  const auto [it, fresh] = place_.try_emplace(dict.ptr(), dicts_.size());
  if (fresh) dicts_.emplace_back().dict = py::reinterpret_borrow<py::object>(dict);
  return dicts_[it->second];
}

void Watches::add_to_dict(const std::string& kind, const py::tuple& watch) {
  std::unique_ptr<Content>& content = of(watch[1]).content;
  if (!content) content = std::make_unique<Content>();
  if (kind == "entry")
    content->entries.push_back({watch[2], watch[3]});
  else if (kind == "names")
    content->names.push_back({watch[2], watch[3].cast<Py_ssize_t>(), watch[4].cast<Py_ssize_t>()});
  else if (kind == "order")
    content->orders.push_back(watch[2]);
  else
    content->whole.push_back({watch[2], watch[3]});
}

void Watches::add_length(const py::object& dict, Py_ssize_t length) {
  if (!PyDict_Check(dict.ptr())) throw py::type_error("only a dict's length can be watched");
  kept_.push_back(dict);
  lengths_.emplace_back(dict.ptr(), length);
}

void Watches::add_object(const py::object& object, PyTypeObject* type) {
  if (!known_.insert(object.ptr()).second) return;
  kept_.push_back(object);
  types_.push_back({object.ptr(), type, nullptr, nullptr});
}

// Version tags of classes are not compared: they change when a member is replaced for a moment and put back, and from
// 3.13 on a class gets a thousand of them at most.
void Watches::add_class(const py::object& type) {
  const auto mro = py::reinterpret_borrow<py::tuple>(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_mro);
  classes_.push_back({type, mro});
  for (const py::handle base : mro) {
    if (!bases_.insert(base.ptr()).second) continue;
    auto* const members = reinterpret_cast<PyTypeObject*>(base.ptr())->tp_dict;
    if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(base.ptr()), Py_TPFLAGS_HEAPTYPE) || !members) continue;
    const auto dict = py::reinterpret_borrow<py::dict>(members);
    add_to_dict("dict", py::make_tuple("dict", dict, py::tuple(py::list(dict.attr("keys")())),
                                       py::tuple(py::list(dict.attr("values")()))));
  }
}

void Watches::add(const py::tuple& watch) {
  const auto kind = watch[0].cast<std::string>();
  const py::object first = watch[1];
  if (kind == "order" && py::len(watch[2]) == 0) {
    add_length(first, 0);
  } else if (kind == "entry" || kind == "names" || kind == "dict" || kind == "order") {
    add_to_dict(kind, watch);
  } else if (kind == "length") {
    add_length(first, watch[2].cast<Py_ssize_t>());
  } else if (kind == "bare") {
    kept_.push_back(first);
    bare_.push_back(first.ptr());
  } else if (kind == "list") {
    lists_.emplace_back(first, watch[2]);
  } else if (kind == "set") {
    sets_.emplace_back(first, watch[2]);
  } else if (kind == "type") {
    add_object(first, reinterpret_cast<PyTypeObject*>(py::object(watch[2]).ptr()));
  } else if (kind == "class") {
    add_class(first);
  } else if (kind == "function") {
    functions_.push_back({first, watch[2], watch[3], watch[4]});
  } else if (kind == "cell") {
    cells_.emplace_back(first, watch[2]);
  } else if (kind == "attribute") {
    attributes_.push_back({first, watch[2], watch[3]});
  } else if (kind == "call") {
    calls_.emplace_back(first, watch[2]);
  } else if (kind == "tensor") {
    tensors_.push_back(std::make_shared<Tensor>(first));
  } else {
    throw py::type_error("unknown kind of watch: " + kind);
  }
}

void Watches::settle() {
  settle_lengths();
  settle_places();
  changed_.reserve(dicts_.size());
  for (size_t i = 0; i < dicts_.size(); ++i) {
    Dict& dict = dicts_[i];
    dict.watched = watch_dict(dict.dict.ptr(), *this, i);
    if (dict.watched)
      changed(i, true);
    else
      versions_.push_back({dict.dict.ptr(), kNoVersion, i});
  }
  for (const Function& f : functions_)
    functions_watched_ = watch_function(f.function.ptr(), *this, kFunctions) && functions_watched_;
}

// What is told of a dict, or its version where that is compared anyway, covers its length. The tables of a module's
// hooks are empty, nearly always: theirs are the most lengths by far, and what is read of a large model's has to
// stay in the processor's second cache.
void Watches::settle_lengths() {
  std::erase_if(lengths_, [this](const auto& watched) {
    const auto& [dict, length] = watched;
    if (can_watch_dicts() || place_.contains(dict))
      of(dict).length = length;
    else if (length == 0)
      empty_.push_back(dict);
    else
      return false;
    return true;
  });
}

// Another dict may be put in the place of a watched one.
void Watches::settle_places() {
  for (const Function& f : functions_) {
    auto* const function = reinterpret_cast<PyFunctionObject*>(f.function.ptr());
    if (function->func_dict && place_.contains(function->func_dict)) add_object(f.function, &PyFunction_Type);
  }
  for (Typed& typed : types_) {
    PyObject** const place = Py_TYPE(typed.object) == typed.type ? _PyObject_GetDictPtr(typed.object) : nullptr;
    if (!place || !*place || !place_.contains(*place)) continue;
    typed.place = place;
    typed.dict = *place;
  }
}

void Watches::changed(size_t what, bool keys) noexcept {
  if (what == kFunctions) {
    functions_changed_ = true;
  } else {
    Dict& dict = dicts_[what];
    ++dict.changes;
    dict.keys = dict.keys || keys;
    if (!std::exchange(dict.listed, true)) changed_.push_back(what);  // there is room
  }
}

void Watches::unwatch_all() {
  for (const Dict& dict : dicts_)
    if (dict.watched) unwatch(dict.dict.ptr(), *this);
  for (const Function& f : functions_) unwatch(f.function.ptr(), *this);
}

// --- what is compared
// -------------------------------------------------------------------------------------------------

bool Watches::Dict::hold() const {
  PyObject* const table = dict.ptr();
  if (length >= 0 && PyDict_GET_SIZE(table) != length) return false;
  if (!content) return true;
  for (const Entry& entry : content->entries)
    if (!same_value(PyDict_GetItemWithError(table, entry.key.ptr()), entry.value.ptr())) return false;
  for (const Names& watched_names : content->names) {
    if (watched && !keys) break;
    if (watched_names.length >= 0 && PyDict_GET_SIZE(table) != watched_names.length) return false;
    if (!same_names(table, watched_names.names.ptr(), watched_names.count)) return false;
  }
  for (const Whole& all : content->whole)
    if (!same_entries(table, all.keys.ptr(), all.values.ptr())) return false;
  for (const py::tuple& order : content->orders)
    if ((!watched || keys) && !same_keys(table, order.ptr())) return false;
  return !PyErr_Occurred();
}

uint64_t Watches::Dict::size() const {
  if (!content) return 1;
  uint64_t values = content->entries.size();
  for (const Names& watched_names : content->names)
    values += watched && !keys ? 0 : PySet_GET_SIZE(watched_names.names.ptr());
  for (const Whole& all : content->whole) values += PyTuple_GET_SIZE(all.keys.ptr());
  return values;
}

bool Watches::Function::hold() const {
  const auto* const now = reinterpret_cast<const PyFunctionObject*>(function.ptr());
  const auto kept = [](PyObject* held) { return held ? held : Py_None; };
  return now->func_code == code.ptr() && kept(now->func_defaults) == defaults.ptr() &&
         kept(now->func_kwdefaults) == keyword_defaults.ptr();
}

bool Watches::types_hold() {
  compared_ += types_.size();
  for (const Typed& typed : types_)
    if (Py_TYPE(typed.object) != typed.type || (typed.place && *typed.place != typed.dict)) return false;
  return true;
}

// Their members are dicts.
bool Watches::classes_hold() {
  compared_ += classes_.size();
  return std::all_of(classes_.begin(), classes_.end(), [](const Class& c) {
    return reinterpret_cast<PyTypeObject*>(c.type.ptr())->tp_mro == c.mro.ptr();
  });
}

bool Watches::functions_hold() {
  if (functions_watched_ && !std::exchange(functions_changed_, false)) return true;
  compared_ += functions_.size();
  functions_changed_ = !std::all_of(functions_.begin(), functions_.end(), [](const Function& f) { return f.hold(); });
  return !functions_changed_;
}

// What nobody tells changes of.
bool Watches::contents_hold() {
  Py_ssize_t entries = 0;
  for (PyObject* const dict : empty_) entries |= reinterpret_cast<const PyDictObject*>(dict)->ma_used;
  if (entries != 0) return false;
  for (const auto& [dict, length] : lengths_)
    if (reinterpret_cast<const PyDictObject*>(dict)->ma_used != length) return false;
  for (const auto& [list, items] : lists_) {
    compared_ += PyTuple_GET_SIZE(items.ptr());
    if (!same_items(list.ptr(), items.ptr())) return false;
  }
  for (const auto& [set, items] : sets_) {
    compared_ += PyTuple_GET_SIZE(items.ptr());
    if (!same_members(set.ptr(), items.ptr())) return false;
  }
  for (const auto& [cell, value] : cells_) {
    PyObject* const now = PyCell_GET(cell.ptr());
    if (!same_value(now ? now : missing_.ptr(), value.ptr())) return false;
  }
  for (const auto& tensor : tensors_)
    if (!tensor->holds()) return false;
  compared_ += empty_.size() + lengths_.size() + cells_.size() + tensors_.size() + bare_.size();
  return have_no_attributes(bare_.data(), bare_.size());
}

bool Watches::dicts_hold() {
  for (Version& seen : versions_) {
    const uint64_t now = version_of(seen.dict);
    if (now != kNoVersion && now == seen.version) continue;
    const Dict& dict = dicts_[seen.index];
    compared_ += dict.size();
    if (!dict.hold()) {
      PyErr_Clear();
      return false;
    }
    seen.version = now;
  }
  return changed_.empty() || changed_dicts_hold();
}

// A dict that changes while it is compared, by what another thread does, is compared again.
bool Watches::changed_dicts_hold() {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::vector<size_t> now = changed_;
    for (const size_t i : now) {
      Dict& dict = dicts_[i];
      const uint64_t changes = dict.changes;
      compared_ += dict.size();
      if (!dict.hold()) {
        PyErr_Clear();
        return false;
      }
      dict.held = changes;
    }
    std::erase_if(changed_, [this](size_t i) {
      Dict& dict = dicts_[i];
      if (dict.held != dict.changes) return false;
      dict.keys = dict.listed = false;
      return true;
    });
    if (changed_.empty()) return true;
  }
  return false;
}

// What Python code tells.
bool Watches::answers_hold() {
  for (const auto& [object, name, value] : attributes_) {
    auto now = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name.ptr()));
    if (!now) {
      PyErr_Clear();
      now = missing_;
    }
    if (!same_value(now.ptr(), value.ptr())) return false;
  }
  for (const auto& [function, result] : calls_) {
    const auto now = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()));
    if (!now) PyErr_Clear();
    if (!same_value(now.ptr(), result.ptr())) return false;
  }
  compared_ += attributes_.size() + calls_.size();
  return true;
}

bool Watches::hold() {
  return !cleared_ && types_hold() && classes_hold() && functions_hold() && contents_hold() && dicts_hold() &&
         answers_hold();
}

// --- the collector of cycles
// ------------------------------------------------------------------------------------------

int Watches::traverse(visitproc visit, void* arg) const {
  const auto pairs = [&](const Pairs& held) {
    for (const auto& [object, value] : held) {
      Py_VISIT(object.ptr());
      Py_VISIT(value.ptr());
    }
    return 0;
  };
  for (const py::object& object : kept_) Py_VISIT(object.ptr());
  for (const Dict& dict : dicts_) {
    Py_VISIT(dict.dict.ptr());
    if (!dict.content) continue;
    for (const Entry& entry : dict.content->entries) {
      Py_VISIT(entry.key.ptr());
      Py_VISIT(entry.value.ptr());
    }
    for (const Whole& all : dict.content->whole) {
      Py_VISIT(all.keys.ptr());
      Py_VISIT(all.values.ptr());
    }
    for (const py::tuple& order : dict.content->orders) Py_VISIT(order.ptr());
  }
  for (const Class& c : classes_) {
    Py_VISIT(c.type.ptr());
    Py_VISIT(c.mro.ptr());
  }
  for (const Function& f : functions_) {
    Py_VISIT(f.function.ptr());
    Py_VISIT(f.defaults.ptr());
    Py_VISIT(f.keyword_defaults.ptr());
  }
  for (const Attribute& attribute : attributes_) {
    Py_VISIT(attribute.object.ptr());
    Py_VISIT(attribute.value.ptr());
  }
  for (const auto& tensor : tensors_) Py_VISIT(tensor->object.ptr());
  for (const Pairs* held : {&lists_, &sets_, &cells_, &calls_})
    if (const int stop = pairs(*held)) return stop;
  return 0;
}

// What is let go may run Python code, which may come back here.
void Watches::clear() {
  if (std::exchange(cleared_, true)) return;
  unwatch_all();
  place_.clear();
  changed_.clear();
  versions_.clear();
  empty_.clear();
  lengths_.clear();
  types_.clear();
  const auto kept = std::exchange(kept_, {});
  const auto dicts = std::exchange(dicts_, {});
  const auto classes = std::exchange(classes_, {});
  const auto functions = std::exchange(functions_, {});
  const auto attributes = std::exchange(attributes_, {});
  const auto tensors = std::exchange(tensors_, {});
  const Pairs pairs[] = {std::exchange(lists_, {}), std::exchange(sets_, {}), std::exchange(cells_, {}),
                         std::exchange(calls_, {})};
}

}  // namespace ortmodule
