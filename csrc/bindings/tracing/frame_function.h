// What of a frame CPython's public interface does not tell, or not without making an object of each caller.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

struct _PyInterpreterFrame;

namespace ortmodule {

// Borrowed; null for a frame that runs no function (a class body, eval).
PyObject* frame_function(PyFrameObject* frame);

// What the frame has in its variables, those around it included; borrowed.
std::vector<PyObject*> frame_values(PyFrameObject* frame);

// Whether a frame is followed, by what kind_of(code, globals) says: kOpaque, kFollowed, kByCaller, as its caller is, or
// kPassedBy, not itself, but what it calls as if its caller did.
enum class FrameKind : char { kOpaque, kFollowed, kByCaller, kPassedBy };
using KindOfFrame = FrameKind (*)(void* context, PyObject* code, PyObject* globals);
bool is_followed(PyFrameObject* frame, KindOfFrame kind_of, void* context);

// The same of an interpreter's frame; `calls`: of what it calls.
bool is_followed(const _PyInterpreterFrame* frame, KindOfFrame kind_of, void* context, bool calls);

// The same of what the Python code calls that runs on this thread.
bool is_followed_caller(KindOfFrame kind_of, void* context);

}  // namespace ortmodule
