#define Py_BUILD_CORE 1
#include <Python.h>
#undef HAVE_STD_ATOMIC  // C's, which C++ cannot read; the headers have another way

extern "C" {
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
}

#include "bindings/watching/own_attributes.h"

namespace ortmodule {
namespace {

bool is_empty(const PyObject* dict) { return !dict || reinterpret_cast<const PyDictObject*>(dict)->ma_used == 0; }

// The values that an object keeps in place of a dict, under the names that its class has met so far.
[[maybe_unused]] bool are_empty(PyObject* object, const PyDictValues* values) {
  const auto* const type = reinterpret_cast<const PyHeapTypeObject*>(Py_TYPE(object));
  const Py_ssize_t names = type->ht_cached_keys ? type->ht_cached_keys->dk_nentries : 0;
  for (Py_ssize_t i = 0; i < names; ++i)
    if (values->values[i]) return false;
  return true;
}

inline bool is_bare(PyObject* object) {
  if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    PyObject** const place = _PyObject_GetDictPtr(object);
    return !place || is_empty(*place);
  }
#if PY_VERSION_HEX >= 0x030D0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_INLINE_VALUES) && _PyObject_InlineValues(object)->valid)
    return _PyObject_InlineValues(object)->size == 0;
  return is_empty(reinterpret_cast<PyObject*>(_PyObject_GetManagedDict(object)));
#elif PY_VERSION_HEX >= 0x030C0000
  const PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
  if (_PyDictOrValues_IsValues(held)) return are_empty(object, _PyDictOrValues_GetValues(held));
  return is_empty(_PyDictOrValues_GetDict(held));
#else
  if (const PyDictValues* const values = *_PyObject_ValuesPointer(object)) return are_empty(object, values);
  return is_empty(*_PyObject_ManagedDictPointer(object));
#endif
}

}  // namespace

bool has_no_attributes(PyObject* object) { return is_bare(object); }

bool have_no_attributes(PyObject* const* objects, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!is_bare(objects[i])) return false;
  return true;
}

}  // namespace ortmodule
