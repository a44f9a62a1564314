#include "bindings/tracing/cached_results.h"

#include <utility>

namespace py = pybind11;

namespace ortmodule {
namespace {

// CPython's `lru_list_elem` of 3.11 to 3.13: a result, in a ring that begins and ends with the cache itself, the one
// used last at its end. The ring and the cache's dictionary own a reference each.
struct CacheLink {
  PyObject_HEAD CacheLink* previous;
  CacheLink* next;
  Py_hash_t hash;
  PyObject* key;
  PyObject* result;
};

void append_to_cache(CacheLink* ring, PyTypeObject* type, const py::dict& table, py::object key, py::object result) {
  const Py_hash_t hash = PyObject_Hash(key.ptr());
  if (hash == -1) throw py::error_already_set();
  auto* const link = PyObject_New(CacheLink, type);
  if (link == nullptr) throw py::error_already_set();
  link->hash = hash;
  link->key = key.release().ptr();
  link->result = result.release().ptr();
  link->previous = ring->previous;
  link->next = ring;
  ring->previous->next = link;
  ring->previous = link;
  if (PyDict_SetItem(table.ptr(), link->key, reinterpret_cast<PyObject*>(link)) != 0) throw py::error_already_set();
}

// False: this Python's caches are others.
bool fill_cache(py::handle cache, const py::dict& table, py::handle link_type, const py::list& results) {
  auto* const ring = reinterpret_cast<CacheLink*>(cache.ptr());
  auto* const type = reinterpret_cast<PyTypeObject*>(link_type.ptr());
  if (!PyType_Check(link_type.ptr()) || type->tp_basicsize != sizeof(CacheLink) || !table.empty()) return false;
  if (ring->previous != ring || ring->next != ring) return false;
  for (const auto& pair : results) {
    const auto both = py::reinterpret_borrow<py::tuple>(pair);
    append_to_cache(ring, type, table, both[0], both[1]);
  }
  return true;
}

}  // namespace

void register_cached_results(py::module_& m) {
  m.def(
      "fill_cache", &fill_cache, py::arg("cache"), py::arg("table"), py::arg("link_type"), py::arg("results"),
      "Gives an empty bounded `functools.lru_cache` these (key, result), the one used last at the end; `table` is its "
      "dictionary, `link_type` the class of that one's values. Returns False, and does nothing, where this Python's "
      "are made otherwise.");
}

}  // namespace ortmodule
