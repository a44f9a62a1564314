#include "bindings/tracing/patched_call.h"

#include <structmember.h>

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/tracing/frame_function.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// Whose calls they are, by the globals of the code that calls; asked once per code object.
class Callers {
 public:
  explicit Callers(py::object kind_of) : kind_of_(std::move(kind_of)) {}

  bool count() { return is_followed_caller(&Callers::kind, this); }

 private:
  static FrameKind kind(void* self, PyObject* code, PyObject* globals) {
    auto& callers = *static_cast<Callers*>(self);
    const auto found = callers.kinds_.find(code);
    if (found != callers.kinds_.end()) return found->second;
    const auto kind = static_cast<FrameKind>(callers.kind_of_(py::handle(globals)).cast<int>());
    callers.kept_.push_back(py::reinterpret_borrow<py::object>(code));
    return callers.kinds_.emplace(code, kind).first->second;
  }

  py::object kind_of_;
  std::unordered_map<PyObject*, FrameKind> kinds_;
  std::vector<py::object> kept_;
};

// Pairs of first arguments of which nothing new is to be heard.
class HeardPairs {
 public:
  void add(const py::object& first, const py::object& second) {
    if (pairs_.emplace(first.ptr(), second.ptr()).second) {
      kept_.push_back(first);
      kept_.push_back(second);
    }
  }
  void clear() {
    pairs_.clear();
    const std::vector<py::object> gone = std::move(kept_);  // which may run anything, at its end
    kept_.clear();
  }
  bool holds(PyObject* first, PyObject* second) const { return !listens || pairs_.count({first, second}) > 0; }

  bool listens = true;

 private:
  std::set<std::pair<PyObject*, PyObject*>> pairs_;
  std::vector<py::object> kept_;
};

enum class Test : char { kNone, kInstance, kCallers, kPairs };

struct PatchedCall {
  PyObject_HEAD;
  PyObject* replacement;
  PyObject* original;
  PyObject* elsewhere;
  PyObject* asked;  // a class, Callers, HeardPairs or None
  PyObject* attributes;
  unsigned long thread;
  void* test_object;
  Test test;
  bool reads_plainly;  // original is object.__getattribute__
  vectorcallfunc call;
};

// Whether a call is none of the replacement's; an error is Python's.
bool goes_to_original(const PatchedCall& self, PyObject* const* arguments, Py_ssize_t count) {
  switch (self.test) {
    case Test::kNone:
      return false;
    case Test::kInstance:
      return count > 0 && !PyType_IsSubtype(Py_TYPE(arguments[0]), reinterpret_cast<PyTypeObject*>(self.asked));
    case Test::kCallers:
      return !static_cast<Callers*>(self.test_object)->count();
    case Test::kPairs:
      return count > 1 && static_cast<HeardPairs*>(self.test_object)->holds(arguments[0], arguments[1]);
  }
  return false;
}

PyObject* vectorcall(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  auto& self = *reinterpret_cast<PatchedCall*>(callable);
  py::object target;
  try {
    if (self.reads_plainly && PyVectorcall_NARGS(flags) == 2 && PyThread_get_thread_ident() == self.thread &&
        goes_to_original(self, arguments, 2))
      return PyObject_GenericGetAttr(arguments[0], arguments[1]);
    PyObject* const found = PyThread_get_thread_ident() != self.thread                     ? self.elsewhere
                            : goes_to_original(self, arguments, PyVectorcall_NARGS(flags)) ? self.original
                                                                                           : self.replacement;
    target = py::reinterpret_borrow<py::object>(found);  // the patch may end in the call
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  return PyObject_Vectorcall(target.ptr(), arguments, flags, names);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto& self = *reinterpret_cast<PatchedCall*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self.replacement);
  Py_VISIT(self.original);
  Py_VISIT(self.elsewhere);
  Py_VISIT(self.asked);
  Py_VISIT(self.attributes);
  return 0;
}

int clear(PyObject* object) {
  auto& self = *reinterpret_cast<PatchedCall*>(object);
  Py_CLEAR(self.replacement);
  Py_CLEAR(self.original);
  Py_CLEAR(self.elsewhere);
  Py_CLEAR(self.asked);
  Py_CLEAR(self.attributes);
  return 0;
}

void destroy(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject*) {
  if (instance) return PyMethod_New(self, instance);
  Py_INCREF(self);
  return self;
}

PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(PatchedCall, attributes), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PatchedCall, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("What a capture puts in a function's place.")},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_members, members},
    {Py_tp_getset, getters},
    {0, nullptr},
};
PyType_Spec spec = {"ortmodule._C.PatchedCall", sizeof(PatchedCall), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                        Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

py::object patched_call(const py::object& replacement, const py::object& original, const py::object& elsewhere,
                        const py::object& asked) {
  static PyObject* const type = PyType_FromSpec(&spec);
  if (!type) throw py::error_already_set();
  auto* const made = PyObject_GC_New(PatchedCall, reinterpret_cast<PyTypeObject*>(type));
  if (!made) throw py::error_already_set();
  made->replacement = py::object(replacement).release().ptr();
  made->original = py::object(original).release().ptr();
  made->elsewhere = py::object(elsewhere).release().ptr();
  made->asked = py::object(asked).release().ptr();
  made->attributes = nullptr;
  made->thread = PyThread_get_thread_ident();
  made->test_object = nullptr;
  made->test = Test::kNone;
  made->reads_plainly = original.is(
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyBaseObject_Type)).attr("__getattribute__"));
  made->call = &vectorcall;
  if (PyType_Check(asked.ptr())) {
    made->test = Test::kInstance;
  } else if (py::isinstance<Callers>(asked)) {
    made->test = Test::kCallers;
    made->test_object = asked.cast<Callers*>();
  } else if (py::isinstance<HeardPairs>(asked)) {
    made->test = Test::kPairs;
    made->test_object = asked.cast<HeardPairs*>();
  }
  PyObject_GC_Track(reinterpret_cast<PyObject*>(made));
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

}  // namespace

void register_patched_call(py::module_& m) {
  py::class_<Callers>(m, "Callers", "Whose calls of a patched function its replacement is for.")
      .def(py::init<py::object>(), py::arg("kind_of"));
  py::class_<HeardPairs>(m, "HeardPairs", "Pairs of first arguments of which a replacement need not hear again.")
      .def(py::init<>())
      .def_readwrite("listens", &HeardPairs::listens)
      .def("add", &HeardPairs::add, py::arg("first"), py::arg("second"))
      .def("clear", &HeardPairs::clear);
  m.def("patched_call", &patched_call, py::arg("replacement"), py::arg("original"), py::arg("elsewhere"),
        py::arg("asked"),
        "A function that calls `replacement` on this thread, `elsewhere` on any other, and `original` where the "
        "replacement has nothing to hear: the first argument is no instance of the class `asked`, the calling code is "
        "none of what the `Callers` count, or the `HeardPairs` hold the first two arguments.");
}

}  // namespace ortmodule
