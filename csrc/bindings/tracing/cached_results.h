// What a bounded `functools.lru_cache` holds, put back: Python has no way to.
// Not here: what it holds, which its garbage collector tells (graph_transition/conditions/caches.py).
#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule {

void register_cached_results(pybind11::module_& m);

}  // namespace ortmodule
