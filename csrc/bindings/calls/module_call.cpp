#include "bindings/calls/module_call.h"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ortmodule {
namespace {

// An entry of a class's dict that must be what it was.
struct ClassEntry {
  py::object dict, key, expected;

  bool holds() const { return PyDict_GetItemWithError(dict.ptr(), key.ptr()) == expected.ptr(); }
};

py::object interned(const char* name) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name)); }

// What the native __call__ knows of the classes that it serves. Made once, and it lives as long as the process.
struct Way {
  PyTypeObject* type = nullptr;  // ORTModule
  py::object module_class, after_error;
  std::vector<ClassEntry> entries;
  std::vector<py::object> hooks_of_all;  // nn.Module's tables of hooks for every module
  py::object forward = interned("forward"), compiled = interned("_compiled_call_impl"), manager = interned("_manager"),
             fast_calls = interned("fast_calls"), call = interned("call"), dunder_call = interned("__call__");
  std::array<py::object, 4> own_hooks{interned("_backward_hooks"), interned("_backward_pre_hooks"),
                                      interned("_forward_hooks"), interned("_forward_pre_hooks")};

  // Whether nn.Module.__call__ would do nothing but call ORTModule's forward.
  bool is_open(PyObject* self, PyObject* dict) const {
    if (Py_TYPE(self) != type) return false;
    for (const ClassEntry& entry : entries)
      if (!entry.holds()) return false;
    for (const py::object& hooks : hooks_of_all)
      if (PyDict_GET_SIZE(hooks.ptr()) != 0) return false;
    for (const py::object& name : own_hooks) {
      PyObject* const hooks = PyDict_GetItemWithError(dict, name.ptr());
      if (!hooks || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0) return false;
    }
    PyObject* const compiled_call = PyDict_GetItemWithError(dict, compiled.ptr());
    return !PyDict_GetItemWithError(dict, forward.ptr()) && (!compiled_call || compiled_call == Py_None);
  }

  // The fast calls' result, NotImplemented when none fits; null with an exception set.
  PyObject* ask(PyObject* dict, PyObject* args, PyObject* kwargs) const {
    PyObject* const found = PyDict_GetItemWithError(dict, manager.ptr());
    if (!found) return Py_NewRef(Py_NotImplemented);
    const auto list = py::reinterpret_steal<py::object>(PyObject_GetAttr(found, fast_calls.ptr()));
    if (!list) return nullptr;
    for (Py_ssize_t i = 0; PyList_Check(list.ptr()) && i < PyList_GET_SIZE(list.ptr()); ++i) {
      const auto fast = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(list.ptr(), i));
      const std::array<PyObject*, 3> given{fast.ptr(), args, kwargs};
      PyObject* const result = PyObject_VectorcallMethod(call.ptr(), given.data(), given.size(), nullptr);
      if (result != Py_NotImplemented) return result;
      Py_DECREF(result);
    }
    return Py_NewRef(Py_NotImplemented);
  }
};

const Way* way = nullptr;

PyObject* raised(PyObject* self, PyObject* args, PyObject* kwargs) {
  const py::error_already_set error;
  const std::array<PyObject*, 4> given{self, error.value().ptr(), args, kwargs};
  return PyObject_Vectorcall(way->after_error.ptr(), given.data(), given.size(), nullptr);
}

PyObject* call_module(PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto named =
      kwargs ? py::reinterpret_borrow<py::object>(kwargs) : py::reinterpret_steal<py::object>(PyDict_New());
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(self, nullptr));
  if (!named || !dict) return nullptr;
  if (way->is_open(self, dict.ptr())) {
    PyObject* const result = way->ask(dict.ptr(), args, named.ptr());
    if (!result) return raised(self, args, named.ptr());
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  const auto method = py::reinterpret_steal<py::object>(
      PyObject_GetAttr(way->module_class.ptr(), way->dunder_call.ptr()));  // as it is now: torch.fx patches it
  if (!method) return nullptr;
  const auto bound = py::reinterpret_steal<py::object>(PyMethod_New(method.ptr(), self));
  return bound ? PyObject_Call(bound.ptr(), args, named.ptr()) : nullptr;
}

PyMethodDef definition{"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_module)),
                       METH_VARARGS | METH_KEYWORDS,
                       "__call__($self, /, *args, **kwargs)\n--\n\nRuns the module; see nn.Module.__call__."};

}  // namespace

void register_module_call(py::module_& m) {
  m.def(
      "native_call",
      [](const py::type& type, const std::vector<std::string>& of_type, const py::type& base,
         const std::vector<std::string>& of_base, std::vector<py::object> hooks_of_all, py::object after_error) {
        auto made = std::make_unique<Way>();
        made->type = reinterpret_cast<PyTypeObject*>(type.ptr());
        made->module_class = base;
        made->after_error = std::move(after_error);
        made->hooks_of_all = std::move(hooks_of_all);
        for (const auto& [owner, names] : {std::pair(type, &of_type), std::pair(base, &of_base)}) {
          const auto dict = py::reinterpret_borrow<py::dict>(reinterpret_cast<PyTypeObject*>(owner.ptr())->tp_dict);
          for (const std::string& name : *names) {
            const py::object key = interned(name.c_str());
            made->entries.push_back({dict, key, dict[key]});
          }
        }
        way = made.release();
        return py::reinterpret_steal<py::object>(
            PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &definition));
      },
      py::arg("type"), py::arg("of_type"), py::arg("base"), py::arg("of_base"), py::arg("hooks_of_all"),
      py::arg("after_error"),
      "__call__ for `type`, a subclass of `base`. While the attributes `of_type` and `of_base` of the two are what "
      "they are now and there are no hooks, it asks the fast calls; else it is base.__call__. What a fast call raises "
      "goes to after_error(self, error, args, kwargs), whose result is the call's. One type per process.");
}

}  // namespace ortmodule
