// Keeps CPython's profile hook off while frames run of which it need not hear.
//
// Python 3.11 runs every instruction of a thread with a hook more slowly, two times and more, and nearly all that runs
// in a capture is torch's. There, each frame that starts goes through an evaluator (PEP 523), which lets the hook hear
// of the followed ones only. Later versions of Python pay for calls alone, and have no gate.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "bindings/tracing/frame_function.h"

namespace ortmodule {

class HookGate {
 public:
  // Of the calling thread, whose profile hook has just been set with `hook_object`; is_followed is asked what
  // `ortmodule::is_followed` asks. Nothing is kept off where another profiler or a debugger hears of the thread, or
  // while another gate is at work.
  void open(PyObject* hook_object, KindOfFrame kind_of, void* context);
  void close();
};

}  // namespace ortmodule
