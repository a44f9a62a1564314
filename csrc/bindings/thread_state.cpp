#include "bindings/thread_state.h"

#include <ATen/ThreadLocalState.h>

namespace py = pybind11;

namespace ortmodule {
namespace {

struct ThreadState {
  at::ThreadLocalState state;
};

}  // namespace

void register_thread_state(py::module_& m) {
  py::class_<ThreadState>(m, "ThreadState", "What torch keeps of the calling thread, as it is now.")
      .def(py::init<>())
      .def(
          "restore", [](const ThreadState& self) { at::ThreadLocalState::setThreadLocalState(self.state); },
          "Puts it back, on the same thread.");
}

}  // namespace ortmodule
