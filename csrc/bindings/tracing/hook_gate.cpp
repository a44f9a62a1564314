#define Py_BUILD_CORE 1
#include <Python.h>

extern "C" {
#include <internal/pycore_frame.h>
}

#include "bindings/tracing/hook_gate.h"

namespace ortmodule {

#if PY_VERSION_HEX < 0x030C0000

namespace {

// Each frame takes a piece of C's stack while there is an evaluator; Python's limit alone says nothing of that.
constexpr int kMostNested = 2500;

struct Gate {
  HookGate* owner = nullptr;
  PyThreadState* thread = nullptr;
  PyObject* hook_object = nullptr;
  KindOfFrame kind_of = nullptr;
  void* context = nullptr;
  _PyFrameEvalFunction before = nullptr;
  int nested = 0;
  bool asks = false;
};

Gate gate;

PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throws);

void uninstall() {
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == &evaluate)
    _PyInterpreterState_SetEvalFrameFunc(interpreter, gate.before);
}

// The frame itself is not among the thread's yet: its caller is the thread's present one.
bool is_followed_from(const _PyInterpreterFrame* caller, const _PyInterpreterFrame* frame) {
  const FrameKind kind = gate.kind_of(gate.context, reinterpret_cast<PyObject*>(frame->f_code), frame->f_globals);
  if (kind != FrameKind::kByCaller) return kind == FrameKind::kFollowed;
  return is_followed(caller, gate.kind_of, gate.context, /*calls=*/true);
}

// To be asked for a kind may run Python, of which nobody hears, and which leaves an exception that is thrown into the
// frame alone. What that raises the hook will meet again, and can raise.
bool is_heard(const PyThreadState* thread, const _PyInterpreterFrame* frame, bool throws) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  if (throws) PyErr_Fetch(&type, &value, &trace);
  gate.asks = true;
  bool heard = true;
  try {
    heard = is_followed_from(thread->cframe->current_frame, frame);
  } catch (pybind11::error_already_set&) {
  }
  gate.asks = false;
  if (throws) PyErr_Restore(type, value, trace);
  return heard;
}

PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throws) {
  const _PyFrameEvalFunction inner = gate.before ? gate.before : &_PyEval_EvalFrameDefault;
  // Within a hook CPython keeps hooks off itself.
  const bool mine = gate.owner && thread == gate.thread && !gate.asks && thread->tracing == 0 &&
                    thread->c_profileobj == gate.hook_object && !thread->c_tracefunc;
  if (!mine) {
    if (!gate.owner) uninstall();  // put back by somebody who had found it there
    return inner(thread, frame, throws);
  }
  if (gate.nested >= kMostNested) {  // from here on the hook hears of everything, and frames take no C stack
    gate.owner = nullptr;
    uninstall();
    thread->cframe->use_tracing = 255;
    return inner(thread, frame, throws);
  }
  const uint8_t before = thread->cframe->use_tracing;
  thread->cframe->use_tracing = is_heard(thread, frame, throws) ? 255 : 0;
  ++gate.nested;
  PyObject* const result = inner(thread, frame, throws);
  --gate.nested;
  if (gate.owner && thread->c_profileobj == gate.hook_object && !thread->c_tracefunc)
    thread->cframe->use_tracing = before;
  return result;
}

}  // namespace

void HookGate::open(PyObject* hook_object, KindOfFrame kind_of, void* context) {
  PyThreadState* const thread = PyThreadState_Get();
  if (gate.owner || thread->c_tracefunc) return;
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  _PyFrameEvalFunction before = _PyInterpreterState_GetEvalFrameFunc(interpreter);
  if (before == &evaluate) before = nullptr;
  gate = {this, thread, hook_object, kind_of, context, before, 0, false};
  _PyInterpreterState_SetEvalFrameFunc(interpreter, &evaluate);
  thread->cframe->use_tracing = 0;
}

void HookGate::close() {
  if (gate.owner != this) return;
  gate.owner = nullptr;
  uninstall();
}

#else

void HookGate::open(PyObject*, KindOfFrame, void*) {}
void HookGate::close() {}

#endif

}  // namespace ortmodule
