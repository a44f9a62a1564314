// Who is told when a Python object changes: CPython's watchers of dicts and functions (3.12 on).
//
// A class's members are a dict as well. The process takes one id of each kind, when it first watches something, and
// keeps it. A callback comes before the change, on any thread, with the GIL; it only marks. Not here: what is compared
// afterwards (watches.h).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>

namespace ortmodule {

class Watcher {
 public:
  // The object that was watched as `what` is about to change; keys: more of a dict than the value under a key.
  virtual void changed(size_t what, bool keys) noexcept = 0;

 protected:
  ~Watcher() = default;
};

// Each tells `watcher` of changes from now on, until unwatch; the caller keeps the object alive so long. False: it has
// to be compared instead, since this Python has no such watchers, or others have taken all ids.
bool watch_dict(PyObject* dict, Watcher& watcher, size_t what);
bool watch_function(PyObject* function, Watcher& watcher, size_t what);

// Whether this Python has watchers of dicts, and an id was free.
bool can_watch_dicts();

// Ends what `watcher` was told of the object.
void unwatch(PyObject* object, const Watcher& watcher);

// How many objects are watched.
size_t watched_objects();

}  // namespace ortmodule
