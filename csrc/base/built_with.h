// What a library that uses the engine's headers was built with; the CMake target ortmodule::core includes this first in
// each of its files.
//
// Note [Built for these headers]
// Such a library asks the loader for a symbol that is named after what the headers say and after torch's version
// (setup.py, ortmoduleConfig.cmake). A libortmodule.so of other headers does not have it, and the library is refused
// before any code of it runs.
#pragma once

extern "C" const char ORTMODULE_BUILT_WITH;

namespace ortmodule {
[[gnu::used]] static const char* const built_with = &ORTMODULE_BUILT_WITH;
}
