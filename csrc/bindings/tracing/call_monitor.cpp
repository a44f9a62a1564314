#include "bindings/tracing/call_monitor.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/tracing/frame_function.h"
#include "bindings/tracing/hook_gate.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

class CallMonitor {
 public:
  // kind_of(code, globals), an int of FrameKind, is asked once per code object; the others are called for followed
  // frames: entered(frame, function or None, values in its variables), returned(frame, value) also for each yield,
  // called(frame, C function). What was told of the same code before is not told again, but of containers, whose
  // contents change.
  CallMonitor(py::object kind_of, py::object entered, py::object returned, py::object called)
      : kind_of_(std::move(kind_of)),
        entered_(std::move(entered)),
        returned_(std::move(returned)),
        called_(std::move(called)) {}

  void start(py::object self) {
    PyThreadState* const thread = PyThreadState_Get();
    outer_ = thread->c_profilefunc;
    outer_object_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
    PyEval_SetProfile(&CallMonitor::hook, self.ptr());
    if (!outer_) gate_.open(self.ptr(), &CallMonitor::kind, this);
  }

  // Returns what one of the functions raised, or None.
  py::object stop() {
    gate_.close();
    if (PyThreadState_Get()->c_profilefunc == &CallMonitor::hook) PyEval_SetProfile(outer_, outer_object_.ptr());
    outer_ = nullptr;
    outer_object_ = {};
    return error_ ? std::move(error_) : py::none();
  }

  // Nothing is told in between.
  void pause() { ++paused_; }
  void resume() { --paused_; }

  // All that comes is told, whether it was before or not: to somebody who has heard nothing of it.
  void forget() {
    seen_.clear();
    calls_.clear();
  }

 private:
  static int hook(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
    auto& monitor = *py::handle(self).cast<CallMonitor*>();
    if (!monitor.note(frame, what, argument)) return -1;
    return monitor.outer_ ? monitor.outer_(monitor.outer_object_.ptr(), frame, what, argument) : 0;
  }

  // False, with Python's error set, where one of the functions raises: the code that runs gets it as its own. But an
  // import runs to its end: modules that import one another cannot be imported again after one that broke off.
  bool note(PyFrameObject* frame, int what, PyObject* argument) {
    if (paused_ > 0 || error_ || (what != PyTrace_CALL && what != PyTrace_RETURN && what != PyTrace_C_CALL))
      return true;
    const py::handle in(reinterpret_cast<PyObject*>(frame));
    try {
      if (!is_followed(frame, &CallMonitor::kind, this)) return true;
      if (what == PyTrace_CALL)
        enter(frame);
      else if (what == PyTrace_C_CALL)
        call(in, argument);
      else if (argument && !holds_nothing(argument))
        returned_(in, py::handle(argument));
    } catch (py::error_already_set& error) {
      error_ = error.value();
      if (is_importing(frame)) return true;
      error.restore();
      return false;
    }
    return true;
  }

  static bool is_importing(PyFrameObject* frame) {
    py::object each = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame));
    for (; each && !each.is_none(); each = each.attr("f_back"))
      if (each.attr("f_code").attr("co_filename").cast<std::string>() == "<frozen importlib._bootstrap>") return true;
    return false;
  }

  void enter(PyFrameObject* frame) {
    PyObject* const function = frame_function(frame);
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    py::list fresh;
    for (PyObject* value : frame_values(frame))
      if (!holds_nothing(value) && (is_container(value) || is_new(code.ptr(), value))) fresh.append(py::handle(value));
    if (!fresh.empty() || !function || is_new(code.ptr(), function))
      entered_(py::handle(reinterpret_cast<PyObject*>(frame)), function ? py::handle(function) : py::handle(Py_None),
               fresh);
  }

  void call(const py::handle& frame, PyObject* function) {
    const PyCFunctionObject* const c =
        PyCFunction_Check(function) ? reinterpret_cast<PyCFunctionObject*>(function) : nullptr;
    if (!c) return;
    PyObject* const self = c->m_self;
    // One generator may be the process's, and another the user's.
    const bool itself = !self || PyModule_Check(self) || PyType_Check(self) || THPGenerator_Check(self);
    PyObject* const owner = itself ? self : reinterpret_cast<PyObject*>(Py_TYPE(self));
    if (calls_.emplace(c->m_ml, owner).second) called_(frame, py::handle(function));
  }

  // Whether a value leads to nothing that a forward could read. It asks no class in Python, as THPVariable_Check does,
  // which may be at the end of its stack.
  static bool holds_nothing(PyObject* value) {
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
           PyUnicode_CheckExact(value) ||
           PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass));
  }

  static bool is_container(PyObject* value) {
    return PyList_Check(value) || PyDict_Check(value) || PyAnySet_Check(value);
  }

  bool is_new(PyObject* code, PyObject* value) {
    if (!seen_.emplace(code, value).second) return false;
    kept_.push_back(py::reinterpret_borrow<py::object>(value));
    return true;
  }

  static FrameKind kind(void* self, PyObject* code, PyObject* globals) {
    auto& monitor = *static_cast<CallMonitor*>(self);
    auto& recent = monitor.recent_[(reinterpret_cast<uintptr_t>(code) >> 5) % monitor.recent_.size()];
    if (recent.first == code) return recent.second;
    const auto found = monitor.kinds_.find(code);
    if (found != monitor.kinds_.end()) return (recent = *found).second;
    const auto kind = static_cast<FrameKind>(monitor.kind_of_(py::handle(code), py::handle(globals)).cast<int>());
    monitor.kept_.push_back(py::reinterpret_borrow<py::object>(code));
    return monitor.kinds_.emplace(code, kind).first->second;
  }

  py::object kind_of_, entered_, returned_, called_;
  Py_tracefunc outer_ = nullptr;
  py::object outer_object_;
  std::unordered_map<PyObject*, FrameKind> kinds_;
  std::array<std::pair<PyObject*, FrameKind>, 4096> recent_{};  // of kinds_: a capture asks a million times
  std::set<std::pair<PyObject*, PyObject*>> seen_;              // (code, value)
  std::set<std::pair<const PyMethodDef*, PyObject*>> calls_;    // C functions, and their owner or its class
  std::vector<py::object> kept_;                                // whose addresses stay theirs
  py::object error_;
  HookGate gate_;
  int paused_ = 0;
};

}  // namespace

void register_call_monitor(py::module_& m) {
  py::class_<CallMonitor>(m, "CallMonitor", "Follows the calls of a thread through CPython's profile hook.")
      .def(py::init<py::object, py::object, py::object, py::object>(), py::arg("kind_of"), py::arg("entered"),
           py::arg("returned"), py::arg("called"))
      .def("start", [](const py::object& self) { self.cast<CallMonitor&>().start(self); })
      .def("pause", &CallMonitor::pause)
      .def("resume", &CallMonitor::resume)
      .def("forget", &CallMonitor::forget)
      .def("stop", &CallMonitor::stop);
}

}  // namespace ortmodule
