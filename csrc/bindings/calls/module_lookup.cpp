#include "bindings/calls/module_lookup.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

struct Heard {
  PyTypeObject* base = nullptr;
  PyObject* changed = nullptr;
  unsigned int version = 0;  // 0: none, as after each change
};

Heard heard;

bool ask_after_changes() {
  if (heard.version != 0 && heard.base->tp_version_tag == heard.version) return true;
  const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(heard.changed));
  if (!done) return false;
  // A class has a version from the first lookup of a name on, be there one or not.
  if (PyObject* found = PyObject_GetAttrString(reinterpret_cast<PyObject*>(heard.base), "forward")) Py_DECREF(found);
  PyErr_Clear();
  heard.version = heard.base->tp_version_tag;
  return true;
}

PyObject* look_up(PyObject* self, PyObject* name) {
  return ask_after_changes() ? PyObject_GenericGetAttr(self, name) : nullptr;
}

PyMethodDef lookup_definition{"__getattribute__", look_up, METH_O,
                              "__getattribute__($self, name, /)\n--\n\nReturn getattr(self, name)."};

}  // namespace

void register_module_lookup(py::module_& m) {
  m.def(
      "native_lookup",
      [](const py::type& type, const py::type& base, const py::function& changed) {
        heard.base = reinterpret_cast<PyTypeObject*>(py::object(base).release().ptr());
        heard.changed = py::object(changed).release().ptr();
        return py::reinterpret_steal<py::object>(
            PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &lookup_definition));
      },
      py::arg("type"), py::arg("base"), py::arg("changed"),
      "__getattribute__ for `type`, a subclass of `base`: it calls changed() first where `base` is another than at the "
      "last lookup, and raises what that raises. One type per process.");
}

}  // namespace ortmodule
