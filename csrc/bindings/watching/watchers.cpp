#include "bindings/watching/watchers.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace ortmodule {
namespace {

using Listeners = std::vector<std::pair<Watcher*, size_t>>;

// Never destroyed: objects may change while the interpreter ends.
std::unordered_map<PyObject*, Listeners>& watched() {
  static auto& map = *new std::unordered_map<PyObject*, Listeners>;
  return map;
}

#if PY_VERSION_HEX >= 0x030C0000

void tell(PyObject* object, bool keys) {
  const auto found = watched().find(object);
  if (found == watched().end()) return;
  for (const auto& [watcher, what] : found->second) watcher->changed(what, keys);
}

// An instance's dict may share its keys with others of the class. CPython 3.12 tells of a name that such a dict gets,
// and that another one has had, as of an entry that changes.
bool is_new(PyObject* dict, PyObject* key) {
  return reinterpret_cast<PyDictObject*>(dict)->ma_values && !PyDict_GetItemWithError(dict, key);
}

int on_dict(PyDict_WatchEvent event, PyObject* dict, PyObject* key, PyObject*) {
  tell(dict, event != PyDict_EVENT_MODIFIED || is_new(dict, key));
  return 0;
}

// CPython calls this for every function of the process.
int on_function(PyFunction_WatchEvent event, PyFunctionObject* function, PyObject*) {
  if (event != PyFunction_EVENT_CREATE && event != PyFunction_EVENT_DESTROY)
    tell(reinterpret_cast<PyObject*>(function), true);
  return 0;
}

// An id of CPython's, or -1 where others have taken all of them.
int taken(int id) {
  if (id < 0) PyErr_Clear();
  return id;
}

// From 3.13 on the values of a class's instance lie in the instance, and a change there passes the dict's watchers by.
// `popitem` gives a dict a table of its own; what it takes out comes last again.
bool has_own_table(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  const auto* const table = reinterpret_cast<const PyDictObject*>(dict);
  if (table->ma_values && PyDict_CheckExact(dict) && table->ma_used > 0) {
    PyObject* const last = PyObject_CallMethod(dict, "popitem", nullptr);
    if (!last) throw pybind11::error_already_set();
    const int set = PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
    Py_DECREF(last);
    if (set < 0) throw pybind11::error_already_set();
  }
  return table->ma_values == nullptr;
#else
  return dict != nullptr;
#endif
}

bool listen(PyObject* object, int done, Watcher& watcher, size_t what) {
  if (done < 0) {
    PyErr_Clear();
    return false;
  }
  watched()[object].emplace_back(&watcher, what);
  return true;
}

#endif

}  // namespace

size_t watched_objects() { return watched().size(); }

#if PY_VERSION_HEX >= 0x030C0000

namespace {

int dict_id() {
  static const int id = taken(PyDict_AddWatcher(&on_dict));
  return id;
}

int function_id() {
  static const int id = taken(PyFunction_AddWatcher(&on_function));
  return id;
}

}  // namespace

bool can_watch_dicts() { return dict_id() >= 0; }

bool watch_dict(PyObject* dict, Watcher& watcher, size_t what) {
  return can_watch_dicts() && has_own_table(dict) && listen(dict, PyDict_Watch(dict_id(), dict), watcher, what);
}

bool watch_function(PyObject* function, Watcher& watcher, size_t what) {
  return function_id() >= 0 && listen(function, 0, watcher, what);
}

void unwatch(PyObject* object, const Watcher& watcher) {
  const auto found = watched().find(object);
  if (found == watched().end()) return;
  std::erase_if(found->second, [&](const auto& listener) { return listener.first == &watcher; });
  if (!found->second.empty()) return;
  watched().erase(found);
  if (PyDict_Check(object) && PyDict_Unwatch(dict_id(), object) < 0) PyErr_Clear();
}

#else

bool can_watch_dicts() { return false; }
bool watch_dict(PyObject*, Watcher&, size_t) { return false; }
bool watch_function(PyObject*, Watcher&, size_t) { return false; }
void unwatch(PyObject*, const Watcher&) {}

#endif

}  // namespace ortmodule
