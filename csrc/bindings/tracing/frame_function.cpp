// CPython's internal headers are included here, in hook_gate.cpp and own_attributes.cpp alone: they define names of
// their own.
#define Py_BUILD_CORE 1
#include <Python.h>

extern "C" {
#include <internal/pycore_frame.h>
}

#include "bindings/tracing/frame_function.h"

namespace ortmodule {

PyObject* frame_function(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* const function = frame->f_frame->f_funcobj;
#else
  PyObject* const function = reinterpret_cast<PyObject*>(frame->f_frame->f_func);
#endif
  return function && PyFunction_Check(function) ? function : nullptr;
}

std::vector<PyObject*> frame_values(PyFrameObject* frame) {
  const _PyInterpreterFrame* const f = frame->f_frame;
#if PY_VERSION_HEX >= 0x030D0000
  const auto* const code = reinterpret_cast<const PyCodeObject*>(f->f_executable);
#else
  const PyCodeObject* const code = f->f_code;
#endif
  std::vector<PyObject*> values;
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    PyObject* value = f->localsplus[i];
    if (value && PyCell_Check(value)) value = PyCell_GET(value);
    if (value) values.push_back(value);
  }
  return values;
}

bool is_followed(PyFrameObject* frame, KindOfFrame kind_of, void* context) {
  return is_followed(frame->f_frame, kind_of, context, false);
}

bool is_followed(const _PyInterpreterFrame* frame, KindOfFrame kind_of, void* context, bool calls) {
  for (const _PyInterpreterFrame* f = frame; f; f = f->previous) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* const code = f->f_executable;
#else
    PyObject* const code = reinterpret_cast<PyObject*>(f->f_code);
#endif
#if PY_VERSION_HEX >= 0x030C0000
    if (f->owner == FRAME_OWNED_BY_CSTACK) continue;  // where C called the interpreter: it has no globals
#endif
    if (!PyCode_Check(code)) continue;
    const FrameKind kind = kind_of(context, code, f->f_globals);
    if (kind == FrameKind::kPassedBy && (calls || f != frame)) continue;
    if (kind != FrameKind::kByCaller) return kind == FrameKind::kFollowed;
  }
  return false;
}

bool is_followed_caller(KindOfFrame kind_of, void* context) {
#if PY_VERSION_HEX >= 0x030D0000
  const _PyInterpreterFrame* const frame = PyThreadState_Get()->current_frame;
#else
  const _PyInterpreterFrame* const frame = PyThreadState_Get()->cframe->current_frame;
#endif
  return is_followed(frame, kind_of, context, /*calls=*/true);
}

}  // namespace ortmodule
