// What of a frame CPython's public interface does not tell, or not without making an object of each caller.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

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

}  // namespace ortmodule
